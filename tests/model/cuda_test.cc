// The same run on a CUDA device and on the CPU. Skipped where there is no device.
#include <gtest/gtest.h>

#include <cmath>

#include "model/compare.h"
#include "model/fake_weights.h"
#include "oscar/model/backend.h"
#include "oscar/model/runner.h"

namespace oscar {
namespace {

// Both are float32 runs; see runner_test.cc for the bound of each against float64.
constexpr double kTolerance = 8e-5;

// Scales rather than rounds: a value near a tie may round either way on the two devices.
class ScalingTap final : public KvTap {
 public:
  void Apply(int, std::span<const int64_t>, HeadRows<const float> k, HeadRows<const float> v,
             HeadRows<float> k_hat, HeadRows<float> v_hat) override {
    for (int64_t i = 0; i < k.size(); ++i) k_hat.data[i] = k.data[i] * 0.8F;
    for (int64_t i = 0; i < v.size(); ++i) v_hat.data[i] = v.data[i] * 1.1F;
  }
};

struct FinishedRun {
  FinishedRun(const ModelWeights& weights, const std::vector<std::vector<int32_t>>& sequences,
              const std::string& device)
      : runner(weights, sequences, device, {&progress, nullptr, 2}) {
    runner.AddStream(&tap, {4, 16}, true);
    runner.AddStream(&tap, {}, false);
    const CaptureSpec spec{ParseMomentList("all"), 2};
    while (runner.next_layer() < weights.config().layers) {
      runner.RunLayer(&spec, &capture);
      for (int s = 0; s < 3; ++s) {
        const float* data = runner.Hidden(s);
        hidden[s].assign(data, data + runner.total_tokens() * weights.config().hidden);
      }
    }
  }
  NullProgress progress;
  ScalingTap tap;
  ModelRunner runner;
  LayerCapture capture;  // of the last layer
  std::vector<float> hidden[3];
};

class CudaTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Models, CudaTest, testing::Values(0, 1, 2));

TEST_P(CudaTest, AgreesWithTheCpu) {
  if (!CudaAvailable()) GTEST_SKIP() << "no CUDA device, or built without OSCAR_TORCH_CUDA";
  ModelConfig config = test::SmallConfig();
  if (GetParam() == 1) config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  if (GetParam() == 2) {
    config.sliding_window = 37;
    config.layer_uses_window[1] = true;
    config.rope.inv_freq.resize(5);
  }
  const test::FakeWeights weights(config);
  const auto sequences = test::RandomSequences({1, 38, 600}, config.vocab, 2);
  const FinishedRun cpu(weights, sequences, "cpu");
  const FinishedRun cuda(weights, sequences, "cuda");
  for (int s = 0; s < 3; ++s) {
    test::WorstError worst;
    for (size_t i = 0; i < cpu.hidden[s].size(); ++i)
      worst.Add(cuda.hidden[s][i], cpu.hidden[s][i]);
    EXPECT_LE(worst.relative(), kTolerance) << "stream " << s << ": " << worst.Where();
  }
  ASSERT_EQ(cuda.capture.moments.sums.size(), MomentTable().size());
  EXPECT_EQ(cuda.capture.moments.count, cpu.capture.moments.count);
  for (const auto& [id, expected] : cpu.capture.moments.sums) {
    const MomentTensor& actual = cuda.capture.moments.At(id);
    ASSERT_EQ(actual.shape, expected.shape);
    test::WorstError worst;
    for (size_t i = 0; i < expected.data.size(); ++i) worst.Add(actual.data[i], expected.data[i]);
    EXPECT_LE(worst.relative(), kTolerance) << InfoOf(id).name << ": " << worst.Where();
  }
  ASSERT_EQ(cuda.capture.k.size(), cpu.capture.k.size());
  test::WorstError rows;
  for (size_t i = 0; i < cpu.capture.k.size(); ++i) {
    rows.Add(ToFloat(cuda.capture.k[i]), ToFloat(cpu.capture.k[i]));
  }
  EXPECT_LE(rows.relative(), 0x1p-7);  // one step of bfloat16
  const LogitComparison a = cpu.runner.CompareLogits(1);
  const LogitComparison b = cuda.runner.CompareLogits(1);
  for (size_t t = 0; t < a.kl.size(); ++t) {
    EXPECT_NEAR(b.kl[t], a.kl[t], 1e-5 + 1e-3 * a.kl[t]);
    if (std::isnan(a.nll_exact[t])) continue;
    EXPECT_NEAR(b.nll_exact[t], a.nll_exact[t], 1e-4);
  }
}

}  // namespace
}  // namespace oscar
