// The kernel verifier through the CPU twins, against the verifier that knows no kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/report/verify_report.h"
#include "oscar/verify/belonging.h"
#include "oscar/verify/evaluate_kernels.h"
#include "oscar/verify/kernel_agreement.h"
#include "verify/fake_inputs.h"

namespace oscar {
namespace {

using test::kSmallWindows;
using testing::HasSubstr;

namespace fs = std::filesystem;

constexpr int64_t kDim = 64;

LayerShape KernelShape(int64_t window) {
  return {.q_heads = 6,
          .kv_heads = 2,
          .k_dim = kDim,
          .v_dim = kDim,
          .hidden = 12,
          .softmax_scale = 0.125,
          .window = window,
          .rope = "full"};
}

// Normal rows; keys with one large channel.
LayerCapture KernelLayer(int layer, const TraceHeader& header, const LayerShape& shape) {
  Random random(DeriveSeed(static_cast<uint64_t>(header.manifest.At("seed").AsInt()),
                           "layer " + std::to_string(layer)));
  int64_t tokens = 0;
  for (const TraceSequence& s : header.sequences) tokens += s.length;
  LayerCapture capture;
  capture.layer = layer;
  capture.q = test::FakeRows(tokens * shape.q_heads * shape.k_dim, random);
  capture.k = test::FakeRows(tokens * shape.kv_heads * shape.k_dim, random);
  capture.v = test::FakeRows(tokens * shape.kv_heads * shape.v_dim, random);
  for (size_t i = 3; i < capture.k.size(); i += static_cast<size_t>(shape.k_dim)) {
    capture.k[i] = ToBFloat16(4 + ToFloat(capture.k[i]));
  }
  capture.moments.shape = shape;
  capture.moments.count = static_cast<uint64_t>(tokens);
  capture.moments.sums[Moment::kKk] = test::SumOfProducts(capture.k, shape.kv_heads, shape.k_dim);
  capture.o_proj = test::FakeRows(shape.hidden * shape.q_heads * shape.v_dim, random);
  return capture;
}

class KernelVerifyTest : public testing::Test {
 protected:
  KernelVerifyTest()
      : folder_(test::FreshFolder(std::string("verify-kernels-") +
                                  testing::UnitTest::GetInstance()->current_test_info()->name())),
        held_out_(test::FakeHeader({60, 41, 50}, 3, {2, 5}, 1)),
        calibration_(test::FakeHeader({70}, 0, {2, 5}, 99)) {
    options_.traces = {Trace(KernelShape(0), "held-out.trace.h5")};
    options_.method.windows = kSmallWindows;
    options_.positions = 9;
    options_.controls = false;
  }

  fs::path Trace(const LayerShape& shape, const std::string& name) const {
    const fs::path path = folder_ / name;
    TraceWriter writer(path, held_out_, false, false);
    for (const int layer : held_out_.layers) {
      writer.WriteLayer(KernelLayer(layer, held_out_, shape));
    }
    writer.Finish();
    return path;
  }

  // Random orthogonal rotations, of the layer (0) or of each of so many KV heads.
  fs::path Entry(int64_t key_heads = 0, int64_t value_heads = 2,
                 const std::string& tag = "tag") const {
    test::EntryParts parts{Rotations("qqt_r_h_pbr", key_heads),
                           Rotations("sst_r_h_pbr", value_heads),
                           test::VerifyManifest(calibration_)};
    return test::WriteVerifyEntry(folder_ / tag, parts);
  }
  static ZooFile Rotations(const std::string& objective, int64_t heads) {
    ZooFile file;
    if (heads > 0) file.format_version = 2;
    file.objective = objective;
    file.source_grouping = heads > 0 ? "per_kv_head" : "layer";
    Random random(4);
    for (const int layer : {2, 5}) {
      ZooLayer& entry = file.layers[layer];
      entry.heads = heads;
      entry.dim = kDim;
      for (int64_t h = 0; h < std::max<int64_t>(heads, 1); ++h) {
        // H D H with random signs D: orthogonal, and no two heads alike.
        const std::vector<double> hadamard = HadamardMatrix(kDim);
        std::vector<double> m = hadamard;
        for (int64_t i = 0; i < kDim; ++i) {
          const double sign = random.Below(2) == 0 ? 1 : -1;
          for (int64_t j = 0; j < kDim; ++j) m[static_cast<size_t>(i * kDim + j)] *= sign;
        }
        ApplyHadamard(MatrixView<double>{m.data(), kDim, kDim});
        for (const double x : m) entry.rotation.push_back(static_cast<float>(x));
      }
      if (heads == 0) entry.eigenvalues.assign(static_cast<size_t>(kDim), 1.0F);
    }
    return file;
  }

  Verification On(const std::string& device) {
    options_.device = device;
    options_.method.as_served = true;  // what kernels do anyway
    return VerifyTraces(options_, ReadEntries(zoo_), quiet_.context);
  }

  fs::path folder_;
  TraceHeader held_out_, calibration_;
  std::vector<fs::path> zoo_;
  TraceVerifyOptions options_;
  test::QuietContext quiet_;
};

double Mean(const SchemeResult& scheme, const std::string& metric) {
  return scheme.metrics.at(metric).summary.mean;
}

// The kernels' arithmetic differs from exact attention over the same cache by at most
// kDecode |o_hat| in the output; queries rounded to bfloat16 (only where they are rotated) move a
// logit by at most 2^-8 |q| |k| scale. On these rows (|q|, |k| near 8 and 9, scale 1/8) that is
// 0.035, and o_hat by twice that times max |v_j - o|: the bound below is loose, the rest is tight.
constexpr double kDecode = 1e-3;

void ExpectSameMetrics(const SchemeResult& cpu, const SchemeResult& kernels) {
  SCOPED_TRACE(cpu.name);
  ASSERT_EQ(cpu.name, kernels.name);
  EXPECT_EQ(cpu.bits_per_element, kernels.bits_per_element);
  const bool rotated = cpu.name != "bf16" && cpu.name != "naive" && cpu.name != "clip-only";
  // Rotated rows are float32 sums in another order, rounded to bfloat16: now and then one rounds to
  // the other side, which moves the row by 2^-8 of one of 64 channels and may flip a code by one
  // (1/3 of the range). One in a thousand elements does at most: 1e-3 of an error's square.
  const double rows = rotated ? 2e-3 : 1e-6;
  for (const char* metric : {"key_error", "value_error", "logit_error"}) {
    EXPECT_NEAR(Mean(kernels, metric), Mean(cpu, metric), rows * Mean(cpu, metric)) << metric;
  }
  EXPECT_NEAR(Mean(kernels, "attention_kl"), Mean(cpu, "attention_kl"),
              2 * rows * Mean(cpu, "attention_kl"));
  for (const char* metric : {"output_error", "projected_output_error"}) {
    const double allowed = kDecode * (1 + Mean(cpu, metric)) + (rotated ? 0.02 : 0);
    EXPECT_NEAR(Mean(kernels, metric), Mean(cpu, metric), allowed) << metric;
  }
  for (size_t r = 0; r < kRegions; ++r) {
    EXPECT_NEAR(kernels.regions[r].at("mass").summary.mean, cpu.regions[r].at("mass").summary.mean,
                1e-12);
  }
}

TEST_F(KernelVerifyTest, TwinsGiveTheMetricsOfTheCpuVerifier) {
  zoo_ = {Entry()};
  struct Variant {
    bool windows;
    int64_t group;
    ScaleType scale;
    ClipMode clip;
    int64_t flush = 1;
  };
  for (const Variant& v : {Variant{true, 0, ScaleType::kF32, ClipMode::kSort},
                           Variant{false, 0, ScaleType::kF32, ClipMode::kBisect},
                           Variant{true, 32, ScaleType::kF16, ClipMode::kSort, 4},
                           Variant{false, 16, ScaleType::kBF16, ClipMode::kSort}}) {
    options_.method.use_windows = v.windows;
    options_.method.windows.flush = v.flush;
    options_.method.group_size = v.group;
    options_.method.scale_type = v.scale;
    options_.method.clip_mode = v.clip;
    options_.schemes = {"bf16", "naive", "hadamard", "clip-only", "hadamard-clip", "oscar"};
    const Verification cpu = On("cpu"), twin = On("twin");
    ASSERT_EQ(cpu.schemes.size(), 6U);
    ASSERT_EQ(twin.schemes.size(), 6U);
    for (size_t i = 0; i < 6; ++i) ExpectSameMetrics(cpu.schemes[i], twin.schemes[i]);
  }
}

// Queries take the rotation of the keys of their KV head, three query heads each: with that of
// another head, scores would be those of strangers, and the output off by its own size.
TEST_F(KernelVerifyTest, EveryKvHeadMayHaveItsOwnRotations) {
  zoo_ = {Entry(2, 0, "keys"), Entry(0, 2, "values"), Entry(2, 2, "both"), Entry(0, 0, "none")};
  options_.schemes = {"oscar"};
  for (const bool windows : {true, false}) {
    options_.method.use_windows = windows;
    const Verification cpu = On("cpu"), twin = On("twin");
    ASSERT_EQ(cpu.schemes.size(), 4U);
    ASSERT_EQ(twin.schemes.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      ExpectSameMetrics(cpu.schemes[i], twin.schemes[i]);
      EXPECT_LE(Mean(twin.schemes[i], "kernel_row_error"), 1) << twin.schemes[i].name;
    }
  }
}

// With a ring, a window hardly longer than the recent tokens shows quantised keys to some queries
// only; the last token of a sequence need not be among them.
TEST_F(KernelVerifyTest, SlidingWindowsReachTheKernels) {
  options_.schemes = {"bf16", "naive"};
  for (const auto& [window, flush, positions] :
       {std::tuple<int64_t, int64_t, int64_t>{24, 1, 9}, {kSmallWindows.recent + 2, 8, 100}}) {
    const std::string name = "sliding" + std::to_string(window) + ".trace.h5";
    options_.traces = {Trace(KernelShape(window), name)};
    options_.method.windows.flush = flush;
    options_.positions = positions;
    const Verification cpu = On("cpu"), twin = On("twin");
    for (size_t i = 0; i < 2; ++i) ExpectSameMetrics(cpu.schemes[i], twin.schemes[i]);
  }
}

TEST_F(KernelVerifyTest, AgreementIsMeasuredAndGated) {
  zoo_ = {Entry()};
  const Verification twin = On("twin");
  for (const SchemeResult& scheme : twin.schemes) {
    SCOPED_TRACE(scheme.name);
    EXPECT_FALSE(scheme.control);
    EXPECT_EQ(Mean(scheme, "kernel_code_errors"), 0);
    EXPECT_LE(Mean(scheme, "kernel_row_error"), 1);
    EXPECT_LE(Mean(scheme, "kernel_output_error"), 1e-3);
    EXPECT_LE(Mean(scheme, "kernel_lse_error"), 1e-4);
    EXPECT_EQ(scheme.layers.size(), 2U);
    EXPECT_TRUE(scheme.layers[1].metrics.contains("kernel_output_error"));
    EXPECT_EQ(Mean(scheme, "lse_error") > 1e-3, scheme.name != "bf16");
  }
  const Value record = BuildRecord(twin, ReadKernelGates({}));
  EXPECT_EQ(record.At("settings").At("device"), Value("twin"));
  EXPECT_EQ(record.At("settings").At("as_served"), Value(true));
  EXPECT_EQ(record.At("volatile").At("device").At("name"), Value("CPU twins of the kernels"));
  EXPECT_EQ(record.At("volatile").Find("kernels"), nullptr);  // twins have no clock
  const std::string text = VerifyText(record, false);
  EXPECT_THAT(text, HasSubstr("kernels on twin"));
  EXPECT_THAT(text, HasSubstr("oscar-lloyd-max:tag was left out"));
  EXPECT_THAT(text, HasSubstr("[6 schemes]"));
  EXPECT_THAT(text, HasSubstr("LSE error"));
}

TEST_F(KernelVerifyTest, EqualRunsGiveEqualRecordsWhateverTheThreads) {
  options_.schemes = {"bf16", "naive", "hadamard-clip"};
  const std::string one = BuildRecord(On("twin"), ReadKernelGates({})).ToJson();
  quiet_.context.threads = 5;
  EXPECT_EQ(BuildRecord(On("twin"), ReadKernelGates({})).ToJson(), one);
}

TEST_F(KernelVerifyTest, TheDeviceGivesWhatTheTwinsGive) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no CUDA device, or a build without CUDA kernels";
  zoo_ = {Entry()};
  for (const bool use_windows : {true, false}) {
    options_.method.use_windows = use_windows;
    const Verification cpu = On("cpu"), device = On("cuda");
    for (const SchemeResult& scheme : device.schemes) {
      for (const SchemeResult& expected : cpu.schemes) {
        if (expected.name == scheme.name) ExpectSameMetrics(expected, scheme);
      }
    }
    const Value record = BuildRecord(device, ReadKernelGates({}));
    for (const Value& gate : record.At("gates").AsArray()) {
      if (!gate.At("metric").AsString().starts_with("kernel_")) continue;
      EXPECT_TRUE(gate.At("passed").AsBool()) << gate.ToJson();
    }
    EXPECT_EQ(record.At("volatile").At("kernels").AsArray().size(), device.schemes.size());
  }
}

// A backend whose kernels are wrong in one place.
class FaultyBackend final : public KernelBackend {
 public:
  enum class Fault { kCode, kRow, kOutput, kStrayWrite };
  FaultyBackend(Fault fault) : fault_(fault), twin_(MakeTwinBackend(2)) {}  // NOLINT

  std::string name() const override { return "faulty"; }
  Value Describe() const override { return Value::Object{}; }
  void* Put(const void* source, int64_t bytes) override { return twin_->Put(source, bytes); }
  void* Allocate(int64_t bytes) override { return twin_->Allocate(bytes); }
  void Get(const void* pointer, void* target, int64_t bytes) const override {
    twin_->Get(pointer, target, bytes);
  }
  void Release() override { twin_->Release(); }
  void Write(const CacheShape& shape, std::span<const WriteJob> jobs) override {
    twin_->Write(shape, jobs);
    const WriteJob& job = jobs[0];
    if (job.codes != nullptr && fault_ == Fault::kStrayWrite) job.codes[0] = 0;
    if (job.codes != nullptr && fault_ == Fault::kCode) {
      for (int64_t t = 0; t < job.tokens; ++t) {
        const int32_t slot = static_cast<const int32_t*>(job.slots.data)[t];
        if (slot >= job.row_slot_offset) continue;
        job.codes[slot * job.heads * shape.CodeBytes()] ^= 1;
        break;
      }
    }
    if (job.codes == nullptr && fault_ == Fault::kRow) {
      job.out_rows[5] = ToBFloat16(1.02F * ToFloat(job.out_rows[5]) + 0.1F);
    }
  }
  void Decode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
              const DecodeInputs& in, const DecodeOutputs& out) override {
    twin_->Decode(shape, lengths, in, out);
    if (fault_ == Fault::kOutput) static_cast<float*>(out.o)[0] += 1;
  }
  std::optional<double> TimeWrite(const CacheShape& /*shape*/,
                                  std::span<const WriteJob> /*jobs*/) override {
    return 0.25;
  }
  std::optional<double> TimeDecode(const DecodeShape& /*shape*/,
                                   std::span<const RequestLengths> lengths, const DecodeInputs& in,
                                   const DecodeOutputs& /*out*/) override {
    // Rows alone take four times as long.
    return lengths.empty() || in.quantised.slots > 8 ? 0.5 : 2.0;
  }

 private:
  Fault fault_;
  std::unique_ptr<KernelBackend> twin_;
};

KernelEvaluation Evaluate(FaultyBackend::Fault fault, const TraceVerifyOptions& options,
                          const RunContext& context, bool use_windows = true) {
  const TraceSet set(options.traces);
  std::vector<std::string> notes;
  std::map<int, LayerShape> shapes;
  for (const int layer : set.layers()) shapes[layer] = set.traces()[0].shape(layer);
  MethodSettings method = options.method;
  method.use_windows = use_windows;
  const std::vector<KvScheme> schemes =
      KernelSchemes(SelectSchemes({"hadamard-clip"}, shapes, method, {}, notes), set, notes);
  const SequenceChoice choice = ChooseSequences(set, method.windows, use_windows);
  FaultyBackend backend(fault);
  return EvaluateOnKernels(set, choice.sequences, schemes, {options.positions, 1, false}, backend,
                           context);
}

TEST_F(KernelVerifyTest, EveryKindOfFaultIsSeen) {
  using Fault = FaultyBackend::Fault;
  const auto metric = [&](Fault fault, const char* name) {
    return Mean(Evaluate(fault, options_, quiet_.context).results.at(0), name);
  };
  EXPECT_GE(metric(Fault::kCode, "kernel_code_errors"), 1);
  EXPECT_GE(metric(Fault::kStrayWrite, "kernel_code_errors"), 1);
  EXPECT_GT(metric(Fault::kRow, "kernel_row_error"), 1);
  EXPECT_EQ(metric(Fault::kRow, "kernel_output_error") > 1e-3, false);
  EXPECT_GT(metric(Fault::kOutput, "kernel_output_error"), 1e-3);
}

TEST_F(KernelVerifyTest, TimesAreReportedBesideTheBaseline) {
  const KernelEvaluation evaluation =
      Evaluate(FaultyBackend::Fault::kOutput, options_, quiet_.context);
  ASSERT_EQ(evaluation.times.size(), 1U);
  const Value& times = evaluation.times[0];
  EXPECT_EQ(times.At("name"), Value("hadamard-clip"));
  EXPECT_DOUBLE_EQ(times.At("write_us").AsDouble(), 250);
  EXPECT_DOUBLE_EQ(times.At("decode_us").AsDouble(), 500);
  EXPECT_DOUBLE_EQ(times.At("speedup").AsDouble(), 4);
  EXPECT_DOUBLE_EQ(times.At("decode_gb_s").AsDouble(),
                   times.At("decode_bytes").AsDouble() / 500e-6 * 1e-9);
  Verification verification;
  verification.schemes = evaluation.results;
  verification.times["kernels"] = evaluation.times;
  const Value record = BuildRecord(verification, ReadKernelGates({}));
  EXPECT_FALSE(Passed(record));
  EXPECT_THAT(VerifyText(record, false), HasSubstr("speed-up"));
  EXPECT_THAT(VerifyHtml(record), HasSubstr("speed-up"));
}

TEST_F(KernelVerifyTest, RefusesByName) {
  const auto refusal = [&](const std::string& device) { return test::Thrown([&] { On(device); }); };
  EXPECT_EQ(refusal("gpu").code(), ErrorCode::kUsage);
  EXPECT_EQ(refusal("cuda:x").code(), ErrorCode::kUsage);
  if (DeviceCount() == 0) {
    const Error error = refusal("cuda");
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_THAT(error.hint(), HasSubstr(HasCuda() ? "--device twin" : "-DOSCAR_CUDA=ON"));
  }
  options_.method.group_size = 8;  // eight groups
  EXPECT_THAT(refusal("twin").what(), HasSubstr("groups"));
  EXPECT_EQ(refusal("twin").code(), ErrorCode::kUnsupported);
  options_.method.group_size = 0;
  options_.schemes = {"oscar-lloyd-max"};
  zoo_ = {Entry()};
  EXPECT_EQ(refusal("twin").code(), ErrorCode::kUsage);
  options_.schemes = {"naive"};
  zoo_.clear();
  options_.traces = {test::WriteVerifyTrace(folder_ / "small.trace.h5", held_out_)};
  EXPECT_THAT(refusal("twin").what(), HasSubstr("head dims 16 of keys and 8"));
}

TEST(KernelGates, AFileCannotWaiveTheAgreement) {
  const fs::path folder = test::FreshFolder("kernel-gates");
  const fs::path path = folder / "gates.json";
  WriteTextFile(path, R"({"schema": "oscar.gates/1", "gates": [{"name": "mine", "scheme": "bf16",
                          "metric": "output_error", "comparison": "<", "bound": 1}]})");
  std::vector<std::string> metrics;
  for (const Gate& gate : ReadKernelGates(path)) metrics.push_back(gate.metric);
  EXPECT_THAT(metrics,
              testing::ElementsAre("output_error", "kernel_code_errors", "kernel_row_error",
                                   "kernel_output_error", "kernel_lse_error"));
}

}  // namespace
}  // namespace oscar
