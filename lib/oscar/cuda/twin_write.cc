// Built with -ffp-contract=off: codes, scales and zeros are compared bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/cuda/twin.h"

namespace oscar {
namespace {

int64_t SlotAt(const SlotList& list, int64_t index) {
  return list.type == DType::kI64 ? static_cast<const int64_t*>(list.data)[index]
                                  : static_cast<const int32_t*>(list.data)[index];
}

// bf16(x R), or the row itself.
std::vector<float> Rotated(const WriteJob& job, const BFloat16* x, int64_t head, int64_t dim) {
  std::vector<float> out(static_cast<size_t>(dim));
  if (job.rotation == nullptr) {
    for (size_t d = 0; d < out.size(); ++d) out[d] = ToFloat(x[d]);
    return out;
  }
  const int64_t matrix = job.rotation_per_head ? head / job.heads_per_rotation : 0;
  const BFloat16* r = job.rotation + matrix * dim * dim;
  for (int64_t d = 0; d < dim; ++d) {
    const float factor = ToFloat(x[d]);
    for (int64_t j = 0; j < dim; ++j)
      out[static_cast<size_t>(j)] += factor * ToFloat(r[d * dim + j]);
  }
  for (float& value : out) value = RoundToBFloat16(value);
  return out;
}

float SortedThreshold(const std::vector<float>& x, int64_t index) {
  std::vector<float> magnitudes;
  magnitudes.reserve(x.size());
  for (const float value : x) magnitudes.push_back(std::abs(value));
  std::nth_element(magnitudes.begin(), magnitudes.begin() + index, magnitudes.end());
  return magnitudes[static_cast<size_t>(index)];
}

float BisectedThresholdOf(const std::vector<float>& x, int64_t index) {
  float low = 0, high = 0;
  for (const float value : x) high = std::max(high, std::abs(value));
  const auto dim = static_cast<int64_t>(x.size());
  for (int64_t left = dim; left > 1; left /= 2) {
    const float middle = (low + high) * 0.5F;
    int64_t above = 0;
    for (const float value : x) above += std::abs(value) > middle ? 1 : 0;
    (above > dim - index ? low : high) = middle;
  }
  return high;
}

void StoreScale(const CacheShape& shape, void* scales, int64_t at, float value) {
  switch (shape.scale_type) {
    case DType::kF16:
      static_cast<Float16*>(scales)[at] = ToFloat16(value);
      break;
    case DType::kBF16:
      static_cast<BFloat16*>(scales)[at] = ToBFloat16(value);
      break;
    default:
      static_cast<float*>(scales)[at] = value;
  }
}

void QuantiseRow(const CacheShape& shape, const WriteJob& job, std::vector<float> x, int64_t at) {
  if (job.clip_index >= 0) {
    const float limit = job.clip_rule == ClipRule::kBisection
                            ? BisectedThresholdOf(x, job.clip_index)
                            : SortedThreshold(x, job.clip_index);
    for (float& value : x) value = std::max(std::min(value, limit), -limit);
  }
  const int64_t group = shape.dim / shape.groups;
  const int64_t bytes = shape.CodeBytes();
  uint8_t* const packed = job.codes + at * bytes;
  std::fill_n(packed, bytes, uint8_t{0});
  for (int64_t g = 0; g < shape.groups; ++g) {
    const auto begin = x.begin() + g * group;
    const auto [low, high] = std::minmax_element(begin, begin + group);
    const float range = *high - *low;
    const float scale = (range > 1e-8F ? range : 1e-8F) / 3.0F;
    const float zero = (0.0F - *low) / scale;
    for (int64_t d = g * group; d < (g + 1) * group; ++d) {
      float t = x[static_cast<size_t>(d)] / scale + zero + 0.5F;
      t = t > 0.0F ? t : 0.0F;
      t = t < 3.0F ? t : 3.0F;
      const auto code = static_cast<unsigned>(t);
      packed[d % bytes] = static_cast<uint8_t>(packed[d % bytes] | (code << (2 * (d / bytes))));
    }
    StoreScale(shape, job.scales, (at * shape.groups + g) * 2, scale);
    StoreScale(shape, job.scales, (at * shape.groups + g) * 2 + 1, zero);
  }
}

}  // namespace

void WriteTwin(const CacheShape& shape, std::span<const WriteJob> jobs) {
  CheckWriteJobs(shape, jobs);
  const std::vector<BFloat16> zeros(static_cast<size_t>(shape.dim));
  for (const WriteJob& job : jobs) {
    for (int64_t token = 0; token < job.tokens; ++token) {
      const int64_t source =
          job.source_slots.data == nullptr ? token : SlotAt(job.source_slots, token);
      const int64_t slot = job.slots.data == nullptr ? token : SlotAt(job.slots, token);
      if (slot < 0) continue;
      const bool keep = job.slots.data == nullptr || slot >= job.row_slot_offset;
      for (int64_t head = 0; head < job.heads; ++head) {
        const BFloat16* const row =
            source < 0 ? zeros.data() : job.rows + (source * job.heads + head) * shape.dim;
        const std::vector<float> x = Rotated(job, row, head, shape.dim);
        if (!keep) {
          if (job.codes != nullptr) QuantiseRow(shape, job, x, slot * job.heads + head);
          continue;
        }
        if (job.out_rows == nullptr) continue;
        const int64_t at = job.slots.data == nullptr ? slot : slot - job.row_slot_offset;
        for (int64_t d = 0; d < shape.dim; ++d) {
          job.out_rows[(at * job.heads + head) * shape.dim + d] =
              ToBFloat16(x[static_cast<size_t>(d)]);
        }
      }
    }
  }
}

}  // namespace oscar
