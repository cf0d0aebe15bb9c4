// The benchmark's plan, arithmetic and record, with a device whose times are a formula.
#include "oscar/bench/run_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "oscar/bench/cache_pool.h"
#include "oscar/bench/measure.h"
#include "oscar/bench/whole_model.h"
#include "oscar/core/error.h"
#include "oscar/report/bench_report.h"

namespace oscar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// INT2 takes 3 us and its bytes at 4000 bytes per us; BF16 1 us and its bytes at 3800.
class FakeDevice final : public BenchDevice {
 public:
  explicit FakeDevice(bool torch, int64_t memory = int64_t{140} << 30)
      : torch_(torch), memory_(memory) {}

  DeviceInfo Info() override {
    DeviceInfo info;
    info.name = "fake";
    info.memory_bytes = memory_;
    info.l2_bytes = 60 << 20;
    return info;
  }
  double ReadBandwidth() override { return 4500; }
  Spread Decode(const DecodeCase& c) override {
    cases.push_back(c);
    return Around(Time(c));
  }
  double Plan(const DecodeCase& /*c*/) override { return 17; }
  Spread Write(const WriteCase& c) override {
    writes.push_back(c);
    return Around(2 + static_cast<double>(c.Bytes()) / 3000);
  }
  std::optional<Spread> Sdpa(const DecodeCase& c, SdpaKernel kernel) override {
    EXPECT_EQ(c.format, CacheFormat::kBFloat16);
    // cuDNN refuses one shape.
    if (!torch_ || (kernel == SdpaKernel::kCudnn && c.batch == 8)) return std::nullopt;
    return Around((kernel == SdpaKernel::kFlash ? 0.5 : 2) * Time(c));
  }
  bool HasTorch() override { return torch_; }
  StepTimes Step(const StepCase& c) override {
    steps.push_back(c);
    const double attention = 1e-3 * static_cast<double>(c.model.layers) * Time(c.attention);
    return {Around(attention + 3), Around(2.5), Around(attention)};
  }

  static double Time(const DecodeCase& c) {
    const auto bytes = static_cast<double>(c.Bytes());
    return c.format == CacheFormat::kInt2 ? 3 + bytes / 4000 : 1 + bytes / 3800;
  }
  static Spread Around(double x) { return {0.9 * x, x, 1.3 * x}; }

  std::vector<DecodeCase> cases;
  std::vector<StepCase> steps;
  std::vector<WriteCase> writes;

 private:
  bool torch_;
  int64_t memory_;
};

struct Quiet {
  NullProgress progress;
  CancelToken cancel;
  RunContext context{&progress, &cancel, 1};
};

Value Measured(const BenchOptions& options, FakeDevice& device) {
  Quiet quiet;
  return RunBench(options, device, quiet.context);
}

Error Refusal(const BenchOptions& options, FakeDevice& device) {
  try {
    Measured(options, device);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kUsage, "");
}

TEST(ModelShape, ParametersOfPublishedModels) {
  // Billions of parameters as the model cards give them: 4.0, 8.2, 32.8, 355 (all experts).
  const std::map<std::string, std::pair<double, double>> expected = {{"qwen3-4b", {4.0, 0.05}},
                                                                     {"qwen3-8b", {8.2, 0.05}},
                                                                     {"qwen3-32b", {32.8, 0.1}},
                                                                     {"glm-4.7", {355, 5}}};
  ASSERT_EQ(KnownModelShapes().size(), expected.size());
  for (const ModelShape& shape : KnownModelShapes()) {
    const auto& [billions, tolerance] = expected.at(shape.name);
    EXPECT_NEAR(1e-9 * static_cast<double>(shape.Parameters()), billions, tolerance) << shape.name;
    CheckDecodeShape(shape.Attention(1, DType::kF32));
  }
}

TEST(Capacity, CountsBytesByHand) {
  const ModelShape model = ModelShapeOf("qwen3-4b");
  const CacheShape shape = model.Attention(1, DType::kF32).cache;
  // K and V of 8 heads of 128: 32 + 8 bytes each in 2 bits, 256 in bf16.
  EXPECT_EQ(RequestBytes(shape, CacheFormat::kInt2, {0, 0}, 1000), 1000 * 640);
  EXPECT_EQ(RequestBytes(shape, CacheFormat::kInt2, {64, 256}, 1000), 680 * 640 + 320 * 4096);
  EXPECT_EQ(RequestBytes(shape, CacheFormat::kInt2, {64, 256}, 100), 100 * 4096);
  EXPECT_EQ(RequestBytes(shape, CacheFormat::kBFloat16, {64, 256}, 100), 100 * 4096);
  // 10 GB beside the weights at 0.5 of the memory: 36 layers of 100 tokens of 4096 bytes.
  const int64_t weights = 2 * model.Parameters();
  const MemoryBudget budget{2 * (weights + 10'000'000'000), 0.5};
  EXPECT_EQ(RequestsThatFit(model, shape, CacheFormat::kBFloat16, {0, 0}, 100, budget),
            10'000'000'000 / (36 * 100 * 4096));
  EXPECT_EQ(RequestsThatFit(model, shape, CacheFormat::kInt2, {0, 0}, 100, {weights, 0.9}), 0);
  EXPECT_EQ(StepBytes(model, shape, CacheFormat::kInt2, {0, 0}, 1000, 7),
            weights + 7 * 36 * 1000 * 640);
  // The input table of an untied model is not read.
  const ModelShape untied = ModelShapeOf("qwen3-8b");
  EXPECT_EQ(StepBytes(untied, shape, CacheFormat::kInt2, {0, 0}, 0, 1),
            2 * (untied.Parameters() - 4096 * 151936));
}

TEST(MeasureLaunches, GraphsGoThroughAllCopies) {
  EXPECT_EQ(LaunchesFor(int64_t{8} << 30, 1), 4);
  EXPECT_EQ(LaunchesFor(400'000'000, 2), 10);
  EXPECT_EQ(LaunchesFor(1 << 20, 480), 480);
  EXPECT_EQ(LaunchesFor(1 << 10, 491520), 2000);
}

TEST(CachePool, EnoughCopiesAndEveryPageOnce) {
  EXPECT_EQ(CopiesBeyondL2(1 << 20, 60 << 20), 480);
  EXPECT_EQ(CopiesBeyondL2(int64_t{1} << 40, 60 << 20), 1);
  for (const bool shuffled : {false, true}) {
    const std::vector<int32_t> slots = PageSlots(80, shuffled, 3);
    EXPECT_EQ(std::set<int32_t>(slots.begin(), slots.end()).size(), 80U);
    bool in_order = true;
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_EQ(slots[i] % 8, static_cast<int32_t>(i % 8));
      in_order = in_order && slots[i] == static_cast<int32_t>(i);
    }
    EXPECT_EQ(in_order, !shuffled);
  }
}

TEST(RunBench, GridInTheOrderAskedForLargestMeasuredFirst) {
  BenchOptions options;
  options.batches = {1, 8};
  options.contexts = {8192, 1024};
  FakeDevice device(true);
  const Value record = Measured(options, device);
  const Value& model = record.At("models").AsArray().at(0);
  const Value::Array& rows = model.At("decode").AsArray();
  ASSERT_EQ(rows.size(), 8U);
  std::vector<std::string> names;
  for (const Value& row : rows) {
    names.push_back(row.At("batch").ToJson() + "x" + row.At("context").ToJson() + " " +
                    row.At("order").AsString());
  }
  EXPECT_THAT(names, ElementsAre("1x8192 random", "1x8192 sequential", "1x1024 random",
                                 "1x1024 sequential", "8x8192 random", "8x8192 sequential",
                                 "8x1024 random", "8x1024 sequential"));
  ASSERT_EQ(device.cases.size(), 16U);
  EXPECT_EQ(device.cases[0].batch * device.cases[0].context, 65536);
  EXPECT_EQ(device.cases[15].batch * device.cases[15].context, 1024);

  const Value& row = rows[0];
  const double int2 = 3 + 8192 * 640 / 4000.0, bf16 = 1 + 8192 * 4096 / 3800.0;
  EXPECT_DOUBLE_EQ(row.At("int2").At("us").AsDouble(), int2);
  EXPECT_DOUBLE_EQ(row.At("int2").At("us_low").AsDouble(), 0.9 * int2);
  EXPECT_DOUBLE_EQ(row.At("int2").At("us_high").AsDouble(), 1.3 * int2);
  EXPECT_EQ(row.At("int2").At("bytes"), Value(8192 * 640));
  EXPECT_DOUBLE_EQ(row.At("int2").At("gb_s").AsDouble(), 8192 * 640 / int2 * 1e-3);
  EXPECT_DOUBLE_EQ(row.At("int2").At("of_read").AsDouble(), 8192 * 640 / int2 / 4500);
  EXPECT_DOUBLE_EQ(row.At("speedup").AsDouble(), bf16 / int2);
  // PyTorch's flash kernel is twice as fast here.
  EXPECT_DOUBLE_EQ(row.At("speedup_over_best_bf16").AsDouble(), 0.5 * bf16 / int2);
  EXPECT_DOUBLE_EQ(row.At("byte_ratio").AsDouble(), 6.4);
  EXPECT_NE(row.Find("sdpa_cudnn"), nullptr);
  EXPECT_EQ(rows[4].Find("sdpa_cudnn"), nullptr);
  EXPECT_EQ(model.At("per_token").At("int2_bytes_all_layers"), Value(36 * 640));
  // A chunk of 32K tokens: 4096 bytes of rows in, 640 out; a step: rows and queries in and out.
  const Value::Array& writes = model.At("writes").AsArray();
  ASSERT_EQ(writes.size(), 3U);
  EXPECT_EQ(writes[0].At("bytes"), Value(32768 * (4096 + 640)));
  EXPECT_DOUBLE_EQ(writes[0].At("us").AsDouble(), 2 + 32768 * (4096 + 640) / 3000.0);
  EXPECT_EQ(writes[2].At("kind"), Value("decode step"));
  EXPECT_EQ(writes[2].At("bytes"), Value(8 * 2 * (4096 + 32 * 128 * 2)));
  const std::string text = BenchText(record);
  EXPECT_THAT(text, HasSubstr("1 x 8K"));
  EXPECT_THAT(text, HasSubstr("cuDNN us"));
  EXPECT_THAT(text, HasSubstr("decode step"));
  EXPECT_THAT(text, HasSubstr("BF16 requests"));
  EXPECT_THAT(text, Not(HasSubstr("decode steps")));
}

TEST(RunBench, WindowsGroupsAndScalesReachTheKernels) {
  BenchOptions options;
  options.models.clear();
  options.q_heads = 9;
  options.kv_heads = 3;
  options.head_dim = 64;
  options.group_size = 32;
  options.scale_type = DType::kF16;
  options.use_windows = true;
  options.windows = {4, 60};
  options.batches = {2};
  options.contexts = {100};
  options.orders = {"sequential"};
  options.write_tokens = 0;
  FakeDevice device(false);
  const Value record = Measured(options, device);
  EXPECT_TRUE(device.writes.empty());
  ASSERT_EQ(device.cases.size(), 2U);
  const DecodeCase& int2 = device.cases[0];
  EXPECT_EQ(int2.shape.cache.groups, 2);
  EXPECT_EQ(int2.shape.cache.scale_type, DType::kF16);
  EXPECT_FALSE(int2.shuffled);
  EXPECT_EQ(int2.Each().rows, 64);
  EXPECT_EQ(int2.Each().quantised, 36);
  // 3 heads, K and V: 16 bytes of codes and 2 x 4 of scales; 128 bytes of bf16.
  EXPECT_EQ(int2.Bytes(), 2 * (36 * 6 * (16 + 8) + 64 * 6 * 128));
  EXPECT_EQ(device.cases[1].Each().quantised, 0);
  EXPECT_EQ(device.cases[1].Each().rows, 100);
  const Value& model = record.At("models").AsArray().at(0);
  EXPECT_EQ(model.Find("capacity"), nullptr);
  EXPECT_THAT(BenchText(record), HasSubstr("9/3 heads of 64"));
  EXPECT_THAT(BenchText(record), HasSubstr("PyTorch's attention was not measured"));
}

TEST(RunBench, CasesThatDoNotFitAreLeftOutByName) {
  BenchOptions options;
  options.batches = {1, 64};
  options.contexts = {32768};
  FakeDevice device(false, int64_t{4} << 30);
  const Value record = Measured(options, device);
  EXPECT_EQ(record.At("models").AsArray().at(0).At("decode").AsArray().size(), 2U);
  EXPECT_THAT(BenchText(record), HasSubstr("64 requests of 32768 tokens were left out"));
}

TEST(RunBench, WholeModelStepsAndTheirRatios) {
  BenchOptions options;
  options.grid = false;
  options.whole_model = true;
  options.batches = {1, 8, 32};
  options.step_contexts = {100 * 1024};
  FakeDevice device(true);
  const Value record = Measured(options, device);
  EXPECT_TRUE(device.cases.empty());
  const Value& model = record.At("models").AsArray().at(0);
  const Value& capacity = model.At("capacity").AsArray().at(0);
  const int64_t few = capacity.At("bf16").AsInt(), many = capacity.At("int2").AsInt();
  // 0.9 of 140 GiB less 8 GB of weights: 8 requests of 15.1 GB, 53 of 2.36 GB.
  EXPECT_EQ(few, 8);
  EXPECT_EQ(many, 53);
  const Value& context = model.At("steps").AsArray().at(0);
  std::vector<std::string> batches;
  for (const Value& step : context.At("steps").AsArray()) {
    batches.push_back(step.At("format").AsString() + step.At("batch").ToJson());
    EXPECT_NEAR(step.At("rest_ms").AsDouble(), 0.5, 1e-9);
    EXPECT_DOUBLE_EQ(step.At("tokens_per_second").AsDouble(),
                     1000 * step.At("batch").AsDouble() / step.At("step_ms").AsDouble());
  }
  EXPECT_THAT(batches, ElementsAre("bf161", "bf168", "int21", "int28", "int232", "int253"));
  // The largest comes first in each format: its memory serves the others.
  EXPECT_EQ(device.steps[0].attention.batch, 8);
  EXPECT_EQ(device.steps[2].attention.batch, 53);
  const auto step = [](CacheFormat format, int64_t batch) {
    const DecodeCase c{
        ModelShapeOf("qwen3-4b").Attention(1, DType::kF32), format, batch, 102400, {0, 0}, true};
    return 36e-3 * FakeDevice::Time(c) + 3;
  };
  const Value& speedup = context.At("speedup");
  EXPECT_DOUBLE_EQ(speedup.At("measured").AsDouble(),
                   step(CacheFormat::kBFloat16, 1) / step(CacheFormat::kInt2, 1));
  const Value& ratio = context.At("throughput");
  EXPECT_DOUBLE_EQ(ratio.At("measured").AsDouble(),
                   53 / step(CacheFormat::kInt2, 53) / (8 / step(CacheFormat::kBFloat16, 8)));
  // Bytes alone: batch over (weights + batch x cache).
  const auto weights = 2 * static_cast<double>(ModelShapeOf("qwen3-4b").Parameters());
  const double token = 36.0 * 102400;
  EXPECT_NEAR(ratio.At("by_bytes").AsDouble(),
              53 / (weights + 53 * token * 640) / (8 / (weights + 8 * token * 4096)), 1e-9);
  EXPECT_NEAR(speedup.At("by_bytes").AsDouble(), (weights + token * 4096) / (weights + token * 640),
              1e-9);
  const std::string text = BenchText(record);
  EXPECT_THAT(text, HasSubstr("paper 3.1"));
  EXPECT_THAT(text, HasSubstr("paper 7.8"));
  EXPECT_THAT(text, HasSubstr("bf16 caches of 32 requests of 102400 tokens do not fit"));
}

TEST(RunBench, RefusesByName) {
  FakeDevice device(false);
  const auto refused = [&](auto change) {
    BenchOptions options;
    change(options);
    return Refusal(options, device);
  };
  EXPECT_THAT(refused([](BenchOptions& o) { o.models = {"gpt-5"}; }).hint(), HasSubstr("glm-4.7"));
  EXPECT_THAT(refused([](BenchOptions& o) {
                o.models.clear();
                o.q_heads = 8;
              }).what(),
              HasSubstr("an explicit shape needs --q-heads, --kv-heads"));
  const Error both = refused([](BenchOptions& o) { o.q_heads = o.kv_heads = o.head_dim = 64; });
  EXPECT_EQ(both.code(), ErrorCode::kUsage);
  EXPECT_THAT(both.what(), HasSubstr("--shape: expected no name beside --q-heads"));
  EXPECT_THAT(both.what(), HasSubstr("found 'qwen3-4b'"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.batches = {1, 1}; }).what(), HasSubstr("twice"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.orders = {"sorted"}; }).what(), HasSubstr("sorted"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.group_size = 100; }).what(), HasSubstr("100"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.grid = false; }).what(), HasSubstr("nothing"));
  const Error whole = refused([](BenchOptions& o) { o.whole_model = true; });
  EXPECT_EQ(whole.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(whole.hint(), HasSubstr("OSCAR_TORCH_CUDA"));
  EXPECT_EQ(refused([](BenchOptions& o) {
              o.models.clear();
              o.q_heads = 64;
              o.kv_heads = 2;
              o.head_dim = 128;
            }).code(),
            ErrorCode::kUnsupported);
  EXPECT_TRUE(device.cases.empty());
}

TEST(OpenBenchDevice, SaysWhatIsMissing) {
  if (DeviceCount() > 0) GTEST_SKIP() << "there is a device";
  for (const auto& [name, code] :
       {std::pair{"cuda", ErrorCode::kDevice}, std::pair{"cuda:0", ErrorCode::kDevice},
        std::pair{"cpu", ErrorCode::kUsage}, std::pair{"cuda:-1", ErrorCode::kUsage}}) {
    try {
      OpenBenchDevice(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << name;
      if (code == ErrorCode::kDevice) {
        EXPECT_THAT(error.hint(), HasSubstr("Hopper"));
      }
    }
  }
}

}  // namespace
}  // namespace oscar
