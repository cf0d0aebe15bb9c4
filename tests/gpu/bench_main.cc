// Times the kernels at model shapes: gpu_bench [--only TEXT]. One line of JSON per case on stdout,
// with how far instructions of a tile hide one another ("issue ...") at the end. Exit code 1 where
// a case takes longer than its bar, 3 on an error.
//
// Caches are larger than any cache of the chip and filled with random data; launch after launch
// reads other pages, all in one CUDA graph; the time of a launch is the median over replays. The
// read bandwidth that fractions refer to is measured first.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/issue_limits.h"
#include "oscar/bench/bench_device.h"
#include "oscar/bench/cache_pool.h"
#include "oscar/bench/measure.h"
#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/cuda/write.h"

namespace oscar {
namespace {

std::string only;  // case names must contain this

bool Wanted(const std::string& name) { return name.find(only) != std::string::npos; }

// Whether a group of cases, named by how their names begin, holds a wanted one.
bool WantedGroup(const std::string& prefix) {
  return only.rfind(prefix, 0) == 0 || prefix.find(only) != std::string::npos;
}

double read_bandwidth = 0;              // bytes per microsecond
std::map<std::string, double> medians;  // of the cases so far
std::vector<std::string> missed;

void Report(const std::string& name, const Spread& t, double bytes, double bar) {
  std::printf(
      "{\"case\": \"%s\", \"us\": %.2f, \"us_min\": %.2f, \"us_max\": %.2f, \"bytes\": %.0f, "
      "\"gb_s\": %.0f, \"of_read\": %.3f, \"bar_us\": %.1f, \"met\": %s}\n",
      name.c_str(), t.median, t.low, t.high, bytes, bytes / t.median * 1e-3,
      bytes / t.median / read_bandwidth, bar,
      bar <= 0          ? "null"
      : t.median <= bar ? "true"
                        : "false");
  std::fflush(stdout);
  medians[name] = t.median;
  if (bar > 0 && t.median > bar) missed.push_back(name);
}

constexpr int64_t kK = 1024;
constexpr int kReplays = 21;

DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim, DType scale = DType::kF32) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, 1, scale};
  shape.q_heads = q_heads;
  return shape;
}

void BenchReadBandwidth(BenchDevice& device) {
  read_bandwidth = device.ReadBandwidth();
  const double bytes = 4.0 * kK * kK * kK, us = bytes / read_bandwidth;
  Report("read_bandwidth", {us, us, us}, bytes, 0);
}

// Requests of `context` tokens, the newest and first `rows` of them in bf16. The bar is given, or
// `factor` times what the case `base` took, if that one ran.
struct Row {
  const char* name;
  int64_t batch, context;
  double bar = 0;
  int64_t rows = 0;
  const char* base = "";
  double factor = 1;

  double Bar() const {
    const auto found = medians.find(base);
    return found == medians.end() ? bar : factor * found->second;
  }
};

// What the bytes take at 0.85 of the read bandwidth, and 3 us.
double ByteBar(double bytes) { return bytes / (0.85 * read_bandwidth) + 3; }

void BenchDecode(BenchDevice& device, DecodeCase c, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (!Wanted(row.name)) continue;
    c.batch = row.batch;
    c.context = row.context;
    c.windows = {row.rows, 0};
    Report(row.name, device.Decode(c), static_cast<double>(c.Bytes()), row.Bar());
  }
}

void BenchInt2(BenchDevice& device) {
  if (!WantedGroup("int2")) return;
  DecodeCase c;
  c.shape = Shape(32, 8, 128);
  BenchDecode(device, c,
              {{"int2 1x8K", 1, 8 * kK, 6},
               {"int2 1x32K", 1, 32 * kK, 10},
               {"int2 1x100K", 1, 100 * kK, 21},
               {"int2 1x1M", 1, kK * kK, 180},
               {"int2 8x100K", 8, 100 * kK, 145},
               {"int2 32x32K", 32, 32 * kK, 180},
               {"int2 64x32K", 64, 32 * kK, 360},
               {"int2 8x8K", 8, 8 * kK},
               {"int2 32x2K", 32, 2 * kK},
               {"int2 1x64K", 1, 64 * kK, ByteBar(64 * kK * 640)},
               {"int2 1x256K", 1, 256 * kK, ByteBar(256 * kK * 640)},
               {"int2 16x32K", 16, 32 * kK, ByteBar(16 * 32 * kK * 640)},
               {"int2 128x8K", 128, 8 * kK, ByteBar(128 * 8 * kK * 640)},
               {"int2 windows 1x32K", 1, 32 * kK, 0, 320, "int2 1x32K", 1.1},
               {"int2 windows 1x100K", 1, 100 * kK, 0, 320, "int2 1x100K", 1.1},
               {"int2 windows 1x1M", 1, kK * kK, 0, 320, "int2 1x1M", 1.1},
               {"int2 windows 8x100K", 8, 100 * kK, 0, 320, "int2 8x100K", 1.1},
               {"int2 windows 32x32K", 32, 32 * kK, 0, 320, "int2 32x32K", 1.1},
               {"int2 windows 64x32K", 64, 32 * kK, 0, 320, "int2 64x32K", 1.1}});
  // A third launch, which waits for the second one.
  c.rotated = true;
  BenchDecode(device, c,
              {{"int2 rotated 1x8K", 1, 8 * kK},
               {"int2 rotated 1x100K", 1, 100 * kK},
               {"int2 rotated 8x100K", 8, 100 * kK},
               {"int2 rotated 64x32K", 64, 32 * kK}});
  c.rotated = false;
  c.shuffled = false;
  BenchDecode(device, c,
              {{"int2 sequential 1x100K", 1, 100 * kK}, {"int2 sequential 32x32K", 32, 32 * kK}});
  c.shuffled = true;
  c.shape = Shape(32, 8, 128, DType::kF16);
  BenchDecode(device, c,
              {{"int2 f16 1x100K", 1, 100 * kK, 0, 0, "int2 1x100K", 0.95},
               {"int2 f16 8x100K", 8, 100 * kK, 0, 0, "int2 8x100K", 0.95},
               {"int2 f16 1x1M", 1, kK * kK, 0, 0, "int2 1x1M", 0.95}});
}

void BenchShapes(BenchDevice& device) {
  if (!WantedGroup("shape")) return;
  for (const auto& [name, shape] : {std::pair{"shape d64 gqa4 8x64K", Shape(32, 8, 64)},
                                    {"shape d256 gqa4 8x64K", Shape(32, 8, 256)},
                                    {"shape d128 gqa1 8x64K", Shape(8, 8, 128)},
                                    {"shape d128 gqa8 8x64K", Shape(64, 8, 128)},
                                    {"shape d128 gqa16 8x64K", Shape(128, 8, 128)},
                                    {"shape d128 gqa4 1 head 8x64K", Shape(4, 1, 128)},
                                    {"shape d256 gqa8 8x64K", Shape(64, 8, 256)},
                                    {"shape d64 gqa8 8x64K", Shape(64, 8, 64)}}) {
    DecodeCase c;
    c.shape = shape;
    const double bytes = static_cast<double>(8 * 64 * kK * shape.cache.QuantisedTokenBytes());
    BenchDecode(device, c, {{name, 8, 64 * kK, bytes / (0.75 * read_bandwidth)}});
  }
}

void BenchBFloat16(BenchDevice& device) {
  if (!WantedGroup("bf16")) return;
  DecodeCase c;
  c.shape = Shape(32, 8, 128);
  c.format = CacheFormat::kBFloat16;
  const auto bar = [](double tokens) { return ByteBar(tokens * 4096); };
  BenchDecode(device, c,
              {{"bf16 1x8K", 1, 8 * kK, bar(8 * kK)},
               {"bf16 1x32K", 1, 32 * kK, bar(32 * kK)},
               {"bf16 1x100K", 1, 100 * kK, bar(100 * kK)},
               {"bf16 1x1M", 1, kK * kK},
               {"bf16 8x100K", 8, 100 * kK},
               {"bf16 32x32K", 32, 32 * kK},
               {"bf16 64x32K", 64, 32 * kK}});
  c.shape = Shape(128, 8, 128);
  BenchDecode(device, c, {{"bf16 gqa16 8x64K", 8, 64 * kK}});
}

struct WriteSide {
  DeviceBuffer rows, rotation, codes, scales, window;
};

void BenchWrite() {
  if (!WantedGroup("write")) return;
  const CacheShape shape{8, 128, 1, DType::kF32};
  const int64_t tokens = 32 * kK, sets = 4;
  const auto slots = PageSlots(tokens, true, 11);
  const DeviceBuffer list = Uploaded(slots.data(), tokens * 4);
  const auto rotation = NormalRows(128 * 128, 12, 1.0 / 11.3);
  const auto block = NormalRows(tokens * 8 * 128, 13, 1);
  std::vector<WriteSide> sides;
  for (int64_t i = 0; i < 2 * sets; ++i) {
    sides.push_back({Uploaded(block.data(), tokens * 8 * 128 * 2),
                     Uploaded(rotation.data(), 128 * 128 * 2), DeviceBuffer(tokens * 8 * 32),
                     DeviceBuffer(tokens * 8 * 8), DeviceBuffer(64 * 8 * 128 * 2)});
  }
  const DeviceStream stream;
  const auto job = [&](int64_t side, double clip, int64_t count, bool rotate) {
    const WriteSide& s = sides[static_cast<size_t>(side)];
    WriteJob j;
    j.rows = s.rows.As<BFloat16>();
    j.tokens = count;
    j.heads = 8;
    j.rotation = rotate ? s.rotation.As<BFloat16>() : nullptr;
    j.slots = {list.data(), DType::kI32};
    j.codes = s.codes.As<uint8_t>();
    j.scales = s.scales.data();
    j.clip_index = ClipIndexOf(clip, 128);
    return j;
  };
  const double bytes = 2.0 * static_cast<double>(tokens) * 8 * (256 + 40);
  const auto prefill = [&](const char* name, double k_clip, double v_clip, bool rotate,
                           double bar) {
    const Spread t = MeasureLaunches(stream, 8, kReplays, [&](Stream s, int i) {
      const WriteJob jobs[2] = {job(2 * (i % sets), k_clip, tokens, rotate),
                                job(2 * (i % sets) + 1, v_clip, tokens, rotate)};
      LaunchWrite(shape, jobs, s);
    });
    Report(name, t, bytes, bar);
  };
  prefill("write 32K rotate clip", 0.96, 0.92, true, 90);
  prefill("write 32K rotate", 0, 0, true, 0);
  prefill("write 32K clip", 0.96, 0.92, false, 0);
  prefill("write 32K plain", 0, 0, false, 0);
  prefill("write 32K rotate clip 0.85", 0.85, 0.85, true, 0);

  // One decode step of 32 requests: keys and values to the bf16 ring, queries rotated.
  const auto q = NormalRows(32 * 32 * 128, 14, 1);
  const DeviceBuffer queries = Uploaded(q.data(), 32 * 32 * 128 * 2), rotated(32 * 32 * 128 * 2);
  const Spread t = MeasureLaunches(stream, 40, kReplays, [&](Stream s, int i) {
    WriteJob jobs[3] = {job(2 * (i % sets), 0, 32, true), job(2 * (i % sets) + 1, 0, 32, true), {}};
    for (int n = 0; n < 2; ++n) {
      jobs[n].codes = nullptr;
      jobs[n].scales = nullptr;
      jobs[n].slots = {};
      jobs[n].out_rows = sides[static_cast<size_t>(2 * (i % sets) + n)].window.As<BFloat16>();
    }
    jobs[2].rows = queries.As<BFloat16>();
    jobs[2].tokens = 32;
    jobs[2].heads = 32;
    jobs[2].rotation = sides[static_cast<size_t>(2 * (i % sets))].rotation.As<BFloat16>();
    jobs[2].out_rows = rotated.As<BFloat16>();
    LaunchWrite(shape, jobs, s);
  });
  Report("write decode step 32", t, 32 * 48 * 512.0, 6);
}

void BenchPlanner() {
  if (!WantedGroup("planner")) return;
  const DecodeShape shape = Shape(32, 8, 128);
  Random random(15);
  std::vector<RequestLengths> lengths;
  for (int i = 0; i < 128; ++i)
    lengths.push_back({static_cast<int64_t>(random.Below(100000)), 320});
  const DeviceStream stream;
  DecodeWorkspace workspace(shape, 128);
  const Spread t{
      0, 1000 * DeviceMilliseconds(stream, [&](Stream s) { workspace.Plan(lengths, s); }), 0};
  Report("planner 128 ragged", t, 0, 0);
}

// The instructions of a tile, alone and together, in cycles: docs/cuda.md on what limits.
void BenchIssue() {
  if (!WantedGroup("issue")) return;
  for (const test::IssueTime& t : test::MeasureIssue()) {
    if (Wanted(t.name)) std::printf("{\"case\": \"%s\", \"cycles\": %.1f}\n", t.name, t.cycles);
  }
}

int Main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--only") only = argv[i + 1];
  }
  const std::unique_ptr<BenchDevice> device = OpenBenchDevice("cuda");
  const DeviceInfo info = device->Info();
  std::printf("{\"device\": \"%s\", \"multiprocessors\": %d, \"l2_bytes\": %lld}\n",
              info.name.c_str(), info.multiprocessors, static_cast<long long>(info.l2_bytes));
  BenchReadBandwidth(*device);
  BenchInt2(*device);
  BenchWrite();
  BenchShapes(*device);
  BenchBFloat16(*device);
  BenchPlanner();
  BenchIssue();
  for (const std::string& name : missed) std::fprintf(stderr, "above its bar: %s\n", name.c_str());
  return missed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  try {
    return oscar::Main(argc, argv);
  } catch (const oscar::Error& error) {
    std::fprintf(stderr, "gpu_bench: error: %s\n", error.what());
    return 3;
  }
}
