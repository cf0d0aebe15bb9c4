// Times the kernels at model shapes: gpu_bench [--only TEXT]. One line of JSON per case on stdout.
//
// Caches are larger than any cache of the chip and filled with random data; launch after launch
// reads other pages, all in one CUDA graph; the time of a launch is the median over replays. The
// read bandwidth that fractions refer to is measured first.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/cuda/decode.h"
#include "oscar/cuda/device.h"
#include "oscar/cuda/write.h"

namespace oscar {
namespace {

std::string only;  // case names must contain this

bool Wanted(const std::string& name) { return name.find(only) != std::string::npos; }

// Whether a group of cases, named by how their names begin, holds a wanted one.
bool WantedGroup(const std::string& prefix) {
  return only.rfind(prefix, 0) == 0 || prefix.find(only) != std::string::npos;
}

// Microseconds of one of `launches` launches of `work`: minimum, median and maximum over replays.
struct Timing {
  double low, median, high;
};

Timing Measure(const DeviceStream& stream, int launches,
               const std::function<void(Stream, int)>& work) {
  const DeviceGraph graph(stream, [&](Stream s) {
    for (int i = 0; i < launches; ++i) work(s, i);
  });
  for (int i = 0; i < 3; ++i) graph.Launch(stream);
  stream.Synchronize();
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    times.push_back(1000 * DeviceMilliseconds(stream, [&](Stream) { graph.Launch(stream); }) /
                    launches);
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2], times.back()};
}

double read_bandwidth = 0;  // bytes per microsecond

void Report(const std::string& name, const Timing& t, double bytes, double bar) {
  std::printf(
      "{\"case\": \"%s\", \"us\": %.2f, \"us_min\": %.2f, \"us_max\": %.2f, \"bytes\": %.0f, "
      "\"gb_s\": %.0f, \"of_read\": %.3f, \"bar_us\": %.1f, \"met\": %s}\n",
      name.c_str(), t.median, t.low, t.high, bytes, bytes / t.median * 1e-3,
      bytes / t.median / read_bandwidth, bar,
      bar <= 0          ? "null"
      : t.median <= bar ? "true"
                        : "false");
  std::fflush(stdout);
}

// Fills a buffer by repeating a random block at odd offsets.
void FillFrom(DeviceBuffer& buffer, const std::vector<uint8_t>& block) {
  const auto size = static_cast<int64_t>(block.size());
  for (int64_t at = 0; at < buffer.bytes(); at += size) {
    buffer.Upload(block.data(), std::min(size, buffer.bytes() - at), at);
  }
}

std::vector<uint8_t> RandomBlock(int64_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> block(static_cast<size_t>(bytes));
  for (size_t i = 0; i + 8 <= block.size(); i += 8) {
    const uint64_t x = random.Next();
    std::memcpy(block.data() + i, &x, 8);
  }
  return block;
}

std::vector<uint8_t> ScaleBlock(DType type, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> block;
  for (int i = 0; i < (1 << 21); ++i) {
    const auto x =
        static_cast<float>(i % 2 == 0 ? 0.2 + 0.2 * random.Uniform() : 1 + random.Uniform());
    const size_t at = block.size();
    block.resize(at + DTypeSize(type));
    if (type == DType::kF32) {
      std::memcpy(block.data() + at, &x, 4);
    } else {
      const uint16_t bits = type == DType::kF16 ? ToFloat16(x).bits : ToBFloat16(x).bits;
      std::memcpy(block.data() + at, &bits, 2);
    }
  }
  return block;
}

std::vector<BFloat16> NormalRows(int64_t count, uint64_t seed, double sd) {
  Random random(seed);
  std::vector<BFloat16> rows;
  for (int64_t i = 0; i < count; ++i)
    rows.push_back(ToBFloat16(static_cast<float>(sd * random.Normal())));
  return rows;
}

DeviceBuffer Uploaded(const void* data, size_t bytes) {
  DeviceBuffer buffer(static_cast<int64_t>(bytes));
  buffer.Upload(data, buffer.bytes());
  return buffer;
}

// Slots of `count` tokens in pages of eight, shuffled or in order.
std::vector<int32_t> PageSlots(int64_t count, bool shuffled, uint64_t seed) {
  std::vector<int32_t> pages(static_cast<size_t>(count / 8));
  std::iota(pages.begin(), pages.end(), 0);
  Random random(seed);
  if (shuffled) {
    for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random.Below(i)]);
  }
  std::vector<int32_t> slots;
  for (const int32_t page : pages) {
    for (int32_t i = 0; i < 8; ++i) slots.push_back(8 * page + i);
  }
  return slots;
}

// A pool of both tiers at one shape.
class Pool {
 public:
  Pool(const DecodeShape& shape, int64_t quantised_slots, int64_t row_slots, bool shuffled)
      : shape_(shape), quantised_(quantised_slots / 8 * 8), rows_(row_slots / 8 * 8) {
    const CacheShape& c = shape.cache;
    if (quantised_ > 0) {
      const auto codes = RandomBlock(64 << 20, 1);
      const auto scales = ScaleBlock(c.scale_type, 2);
      k_codes_ = DeviceBuffer(quantised_ * c.heads * c.CodeBytes());
      v_codes_ = DeviceBuffer(quantised_ * c.heads * c.CodeBytes());
      k_scales_ = DeviceBuffer(quantised_ * c.heads * c.ScaleBytes());
      v_scales_ = DeviceBuffer(quantised_ * c.heads * c.ScaleBytes());
      FillFrom(k_codes_, codes);
      FillFrom(v_codes_, codes);
      FillFrom(k_scales_, scales);
      FillFrom(v_scales_, scales);
      const auto slots = PageSlots(quantised_, shuffled, 3);
      quantised_list_ = Uploaded(slots.data(), slots.size() * 4);
    }
    if (rows_ > 0) {
      const auto block = NormalRows(16 << 20, 4, 0.7);
      std::vector<uint8_t> bytes(block.size() * 2);
      std::memcpy(bytes.data(), block.data(), bytes.size());
      k_rows_ = DeviceBuffer(rows_ * c.heads * c.dim * 2);
      v_rows_ = DeviceBuffer(rows_ * c.heads * c.dim * 2);
      FillFrom(k_rows_, bytes);
      FillFrom(v_rows_, bytes);
      const auto slots = PageSlots(rows_, shuffled, 5);
      row_list_ = Uploaded(slots.data(), slots.size() * 4);
    }
  }

  // Inputs of launch i of a case that reads so many tokens of each tier.
  DecodeInputs Inputs(int i, int64_t quantised_tokens, int64_t row_tokens) const {
    DecodeInputs in;
    in.quantised = {k_codes_.As<uint8_t>(), v_codes_.As<uint8_t>(), k_scales_.data(),
                    v_scales_.data(), quantised_};
    in.rows = {k_rows_.As<BFloat16>(), v_rows_.As<BFloat16>(), rows_};
    const auto at = [i](int64_t tokens, int64_t pool) {
      return tokens == 0 ? 0 : i % std::max<int64_t>(1, pool / tokens) * tokens;
    };
    in.quantised_slots = {quantised_list_.As<int32_t>() + at(quantised_tokens, quantised_),
                          DType::kI32};
    in.row_slots = {row_list_.As<int32_t>() + at(row_tokens, rows_), DType::kI32};
    in.logit_scale = 1 / std::sqrt(static_cast<float>(shape_.cache.dim));
    return in;
  }

  void Decode(const std::string& name, int64_t batch, RequestLengths each, double bar) const {
    if (!Wanted(name)) return;
    const CacheShape& c = shape_.cache;
    const DeviceStream stream;
    DecodeWorkspace workspace(shape_, batch);
    workspace.Plan(std::vector<RequestLengths>(static_cast<size_t>(batch), each), stream);
    const auto q = NormalRows(batch * shape_.q_heads * c.dim, 6, 1);
    const DeviceBuffer queries = Uploaded(q.data(), q.size() * 2);
    const DeviceBuffer o(batch * shape_.q_heads * c.dim * 2), lse(batch * shape_.q_heads * 4);
    const double bytes = static_cast<double>(
        batch * (each.quantised * c.QuantisedTokenBytes() + each.rows * c.RowTokenBytes()));
    const int launches = std::clamp(static_cast<int>(4e9 / bytes), 4, 60);
    const Timing t = Measure(stream, launches, [&](Stream s, int i) {
      DecodeInputs in = Inputs(i, batch * each.quantised, batch * each.rows);
      in.q = queries.As<BFloat16>();
      LaunchDecode(workspace, in, {o.data(), DType::kBF16, lse.As<float>()}, s);
    });
    Report(name, t, bytes, bar);
  }

 private:
  DecodeShape shape_;
  int64_t quantised_, rows_;
  DeviceBuffer k_codes_, v_codes_, k_scales_, v_scales_, k_rows_, v_rows_, quantised_list_,
      row_list_;
};

DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim, DType scale = DType::kF32) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, 1, scale};
  shape.q_heads = q_heads;
  return shape;
}

void BenchReadBandwidth() {
  const DeviceStream stream;
  DeviceBuffer data(int64_t{4} << 30), sum(16);
  FillFrom(data, RandomBlock(64 << 20, 9));
  const Timing t =
      Measure(stream, 4, [&](Stream s, int) { ReadAll(data.data(), data.bytes(), sum.data(), s); });
  read_bandwidth = static_cast<double>(data.bytes()) / t.low;
  Report("read_bandwidth", t, static_cast<double>(data.bytes()), 0);
}

constexpr int64_t kK = 1024;

void BenchInt2() {
  if (!WantedGroup("int2")) return;
  {
    const Pool pool(Shape(32, 8, 128), 4 * kK * kK, 64 * 320 * 4, true);
    pool.Decode("int2 1x8K", 1, {8 * kK, 0}, 6);
    pool.Decode("int2 1x32K", 1, {32 * kK, 0}, 10);
    pool.Decode("int2 1x100K", 1, {100 * kK, 0}, 21);
    pool.Decode("int2 1x1M", 1, {kK * kK, 0}, 180);
    pool.Decode("int2 8x100K", 8, {100 * kK, 0}, 145);
    pool.Decode("int2 32x32K", 32, {32 * kK, 0}, 180);
    pool.Decode("int2 64x32K", 64, {32 * kK, 0}, 360);
    pool.Decode("int2 windows 1x32K", 1, {32 * kK - 320, 320}, 0);
    pool.Decode("int2 windows 1x100K", 1, {100 * kK - 320, 320}, 0);
    pool.Decode("int2 windows 8x100K", 8, {100 * kK - 320, 320}, 0);
    pool.Decode("int2 windows 32x32K", 32, {32 * kK - 320, 320}, 0);
    pool.Decode("int2 windows 64x32K", 64, {32 * kK - 320, 320}, 0);
  }
  {
    const Pool pool(Shape(32, 8, 128), 2 * kK * kK, 0, false);
    pool.Decode("int2 sequential 1x100K", 1, {100 * kK, 0}, 0);
    pool.Decode("int2 sequential 32x32K", 32, {32 * kK, 0}, 0);
  }
  {
    const Pool pool(Shape(32, 8, 128, DType::kF16), 2 * kK * kK, 0, true);
    pool.Decode("int2 f16 1x100K", 1, {100 * kK, 0}, 0);
    pool.Decode("int2 f16 8x100K", 8, {100 * kK, 0}, 0);
    pool.Decode("int2 f16 1x1M", 1, {kK * kK, 0}, 0);
  }
}

void BenchShapes() {
  if (!WantedGroup("shape")) return;
  struct Row {
    const char* name;
    DecodeShape shape;
  };
  for (const Row& row :
       {Row{"shape d64 gqa4", Shape(32, 8, 64)}, Row{"shape d256 gqa4", Shape(32, 8, 256)},
        Row{"shape d128 gqa1", Shape(8, 8, 128)}, Row{"shape d128 gqa8", Shape(64, 8, 128)},
        Row{"shape d128 gqa16", Shape(128, 8, 128)},
        Row{"shape d128 gqa4 1 head", Shape(4, 1, 128)}, Row{"shape d256 gqa8", Shape(64, 8, 256)},
        Row{"shape d64 gqa8", Shape(64, 8, 64)}}) {
    const std::string name = std::string(row.name) + " 8x64K";
    if (!Wanted(name)) continue;
    const Pool pool(row.shape, 2 * kK * kK, 0, true);
    const double bytes = static_cast<double>(8 * 64 * kK * row.shape.cache.QuantisedTokenBytes());
    pool.Decode(name, 8, {64 * kK, 0}, bytes / (0.75 * read_bandwidth));
  }
}

void BenchBFloat16() {
  if (!WantedGroup("bf16")) return;
  const Pool pool(Shape(32, 8, 128), 0, 2 * kK * kK, true);
  const auto bar = [](double tokens) { return tokens * 4096 / (0.85 * read_bandwidth) + 3; };
  pool.Decode("bf16 1x8K", 1, {0, 8 * kK}, bar(8 * kK));
  pool.Decode("bf16 1x32K", 1, {0, 32 * kK}, bar(32 * kK));
  pool.Decode("bf16 1x100K", 1, {0, 100 * kK}, bar(100 * kK));
  pool.Decode("bf16 1x1M", 1, {0, kK * kK}, 0);
  pool.Decode("bf16 8x100K", 8, {0, 100 * kK}, 0);
  pool.Decode("bf16 32x32K", 32, {0, 32 * kK}, 0);
  pool.Decode("bf16 64x32K", 64, {0, 32 * kK}, 0);
}

struct WriteSide {
  DeviceBuffer rows, rotation, codes, scales, window;
};

void BenchWrite() {
  if (!WantedGroup("write")) return;
  const CacheShape shape{8, 128, 1, DType::kF32};
  const int64_t tokens = 32 * kK, sets = 4;
  const auto slots = PageSlots(tokens, true, 11);
  const DeviceBuffer list = Uploaded(slots.data(), slots.size() * 4);
  const auto rotation = NormalRows(128 * 128, 12, 1.0 / 11.3);
  const auto block = NormalRows(tokens * 8 * 128, 13, 1);
  std::vector<WriteSide> sides;
  for (int64_t i = 0; i < 2 * sets; ++i) {
    sides.push_back({Uploaded(block.data(), block.size() * 2),
                     Uploaded(rotation.data(), rotation.size() * 2), DeviceBuffer(tokens * 8 * 32),
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
    const Timing t = Measure(stream, 8, [&](Stream s, int i) {
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
  const DeviceBuffer queries = Uploaded(q.data(), q.size() * 2), rotated(32 * 32 * 128 * 2);
  const Timing t = Measure(stream, 40, [&](Stream s, int i) {
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
  const Timing t{
      0, 1000 * DeviceMilliseconds(stream, [&](Stream) { workspace.Plan(lengths, stream); }), 0};
  Report("planner 128 ragged", t, 0, 0);
}

int Main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--only") only = argv[i + 1];
  }
  UseDevice(0);
  const DeviceInfo info = QueryDevice(0);
  std::printf("{\"device\": \"%s\", \"multiprocessors\": %d, \"l2_bytes\": %lld}\n",
              info.name.c_str(), info.multiprocessors, static_cast<long long>(info.l2_bytes));
  BenchReadBandwidth();
  BenchInt2();
  BenchWrite();
  BenchShapes();
  BenchBFloat16();
  BenchPlanner();
  return 0;
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
