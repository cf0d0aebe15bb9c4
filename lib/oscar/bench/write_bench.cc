#include "oscar/bench/write_bench.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "oscar/bench/cache_pool.h"
#include "oscar/bench/measure.h"
#include "oscar/cuda/write.h"

namespace oscar {
namespace {

constexpr int kReplays = 21;
// The public recipe.
constexpr double kKeyClip = 0.96, kValueClip = 0.92;

DeviceBuffer Rows(int64_t count, uint64_t seed) {
  const std::vector<BFloat16> block = NormalRows(std::min<int64_t>(count, 1 << 20), seed, 1);
  const auto bytes = static_cast<int64_t>(block.size()) * 2;
  DeviceBuffer rows(count * 2);
  for (int64_t at = 0; at < rows.bytes(); at += bytes) {
    rows.Upload(block.data(), std::min(bytes, rows.bytes() - at), at);
  }
  return rows;
}

// Keys or values of one copy of the case's data, and where they go.
struct Side {
  DeviceBuffer rows, rotation, codes, scales, ring;
};

class Writes {
 public:
  Writes(const WriteCase& c, int64_t copies) : c_(c) {
    const CacheShape& cache = c.shape.cache;
    const int64_t slots = (c.tokens + kSlotsPerPage - 1) / kSlotsPerPage * kSlotsPerPage;
    const std::vector<int32_t> list = PageSlots(slots, true, 11);
    slots_ = Uploaded(list.data(), slots * 4);
    const std::vector<BFloat16> rotation =
        NormalRows(cache.dim * cache.dim, 12, 1 / std::sqrt(static_cast<double>(cache.dim)));
    for (int64_t i = 0; i < 2 * copies; ++i) {
      Side side;
      side.rows = Rows(c.tokens * cache.heads * cache.dim, 13);
      side.rotation = Uploaded(rotation.data(), cache.dim * cache.dim * 2);
      if (c.decode_step) {
        side.ring = DeviceBuffer(c.tokens * cache.heads * cache.dim * 2);
      } else {
        side.codes = DeviceBuffer(slots * cache.heads * cache.CodeBytes());
        side.scales = DeviceBuffer(slots * cache.heads * cache.ScaleBytes());
      }
      sides_.push_back(std::move(side));
    }
    if (!c.decode_step) return;
    q_ = Rows(c.tokens * c.shape.q_heads * cache.dim, 14);
    rotated_q_ = DeviceBuffer(q_.bytes());
  }

  void Run(Stream stream, int64_t copy) const {
    std::vector<WriteJob> jobs = {Job(2 * copy, kKeyClip), Job(2 * copy + 1, kValueClip)};
    if (c_.decode_step) {
      WriteJob q;
      q.rows = q_.As<BFloat16>();
      q.tokens = c_.tokens;
      q.heads = c_.shape.q_heads;
      q.rotation = jobs[0].rotation;
      q.out_rows = rotated_q_.As<BFloat16>();
      jobs.push_back(q);
    }
    LaunchWrite(c_.shape.cache, jobs, stream);
  }

 private:
  WriteJob Job(int64_t index, double clip) const {
    const Side& side = sides_[static_cast<size_t>(index)];
    WriteJob job;
    job.rows = side.rows.As<BFloat16>();
    job.tokens = c_.tokens;
    job.heads = c_.shape.cache.heads;
    job.rotation = side.rotation.As<BFloat16>();
    if (c_.decode_step) {
      job.out_rows = side.ring.As<BFloat16>();
      return job;
    }
    job.slots = {slots_.data(), DType::kI32};
    job.codes = side.codes.As<uint8_t>();
    job.scales = side.scales.data();
    job.clip_index = ClipIndexOf(clip, c_.shape.cache.dim);
    return job;
  }

  const WriteCase& c_;
  DeviceBuffer slots_, q_, rotated_q_;
  std::vector<Side> sides_;
};

}  // namespace

int64_t WriteCase::Bytes() const {
  const CacheShape& cache = shape.cache;
  if (!decode_step) return tokens * (cache.RowTokenBytes() + cache.QuantisedTokenBytes());
  return 2 * tokens * (cache.RowTokenBytes() + shape.q_heads * cache.dim * 2);
}

Spread TimeWrite(const WriteCase& c, const DeviceInfo& info, const DeviceStream& stream) {
  // A decode step finds its rows in the L2 cache, where the projections left them.
  const int64_t copies = c.decode_step ? 1 : CopiesBeyondL2(c.Bytes(), info.l2_bytes) + 1;
  const Writes writes(c, copies);
  const int launches = c.decode_step ? 40 : static_cast<int>(std::clamp<int64_t>(copies, 8, 200));
  return MeasureLaunches(stream, launches, kReplays,
                         [&](Stream s, int i) { writes.Run(s, i % copies); });
}

}  // namespace oscar
