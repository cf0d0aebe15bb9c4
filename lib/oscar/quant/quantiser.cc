#include "oscar/quant/quantiser.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/quant/packing.h"

// Built with -ffp-contract=off: a fused multiply-add would change codes of constant rows.

namespace oscar {
namespace {

// Constants of the public Lloyd-Max mode (method.md 5.5): decision threshold, the span of the outer
// centroids of the 4-level Lloyd-Max quantiser of a Gaussian, and the factor on its step.
constexpr float kLloydThreshold = 0.9810652732849121F;
constexpr double kLloydSpan = 2 * 1.5095585584640503;
constexpr double kLloydRatio = 1.16;

constexpr float kSmallestRange = 1e-8F;
constexpr int64_t kRowsPerTask = 256;

// Sum in the order of NumPy's pairwise summation, in which the reference vectors were made: eight
// interleaved partial sums over up to 128 terms, halves beyond that.
float PairwiseSum(const float* x, int64_t n) {
  if (n < 8) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    return sum;
  }
  if (n > 128) {
    const int64_t half = n / 2 - n / 2 % 8;
    return PairwiseSum(x, half) + PairwiseSum(x + half, n - half);
  }
  float part[8];
  std::copy_n(x, 8, part);
  int64_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) part[lane] += x[i + lane];
  }
  float sum =
      ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  for (; i < n; ++i) sum += x[i];
  return sum;
}

struct Extremes {
  float min, max;
};

Extremes FindExtremes(const float* x, int64_t n) {
  constexpr int64_t lanes = 8;
  float low[lanes];
  float high[lanes];
  std::fill_n(low, lanes, x[0]);
  std::fill_n(high, lanes, x[0]);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      low[lane] = x[i + lane] < low[lane] ? x[i + lane] : low[lane];
      high[lane] = x[i + lane] > high[lane] ? x[i + lane] : high[lane];
    }
  }
  for (; i < n; ++i) {
    low[0] = std::min(low[0], x[i]);
    high[0] = std::max(high[0], x[i]);
  }
  return {*std::min_element(low, low + lanes), *std::max_element(high, high + lanes)};
}

void Clamp(float* x, int64_t n, float threshold) {
  for (int64_t i = 0; i < n; ++i) {
    const float limited = x[i] < threshold ? x[i] : threshold;
    x[i] = limited > -threshold ? limited : -threshold;
  }
}

float LargestFinite(ScaleType type) {
  switch (type) {
    case ScaleType::kF16:
      return 65504.0F;
    case ScaleType::kBF16:
      return ToFloat(BFloat16{0x7f7f});
    case ScaleType::kF32:
      break;
  }
  return std::numeric_limits<float>::max();
}

// Stored metadata as the way back understands it, see the head of quantiser.h.
float Saturate(float value, ScaleType type) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return 0;
  return value > 0 ? LargestFinite(type) : -LargestFinite(type);
}

void DecodeGroup(const int32_t* codes, int64_t n, float scale, float zero, ScaleType type,
                 float* x_hat) {
  const float s = Saturate(scale, type);
  const float z = Saturate(zero, type);
  for (int64_t i = 0; i < n; ++i) x_hat[i] = (static_cast<float>(codes[i]) - z) * s;
  // |code - z| <= 3 + |z|: only then can the product leave float32's range.
  if (std::isfinite((3.0F + std::abs(z)) * s)) return;
  const float limit = std::numeric_limits<float>::max();
  for (int64_t i = 0; i < n; ++i) x_hat[i] = std::clamp(x_hat[i], -limit, limit);
}

}  // namespace

float RoundToScaleType(float value, ScaleType type) {
  switch (type) {
    case ScaleType::kF16:
      return ToFloat(ToFloat16(value));
    case ScaleType::kBF16:
      return RoundToBFloat16(value);
    case ScaleType::kF32:
      break;
  }
  return value;
}

bool AllFinite(const float* row, int64_t dim) {
  constexpr int32_t exponent = 0x7f800000;
  int32_t bad = 0;
  for (int64_t i = 0; i < dim; ++i) {
    bad |= (std::bit_cast<int32_t>(row[i]) & exponent) == exponent ? 1 : 0;
  }
  return bad == 0;
}

RowQuantiser::RowQuantiser(const QuantiserSpec& spec, int64_t dim) : spec_(spec), dim_(dim) {
  spec.Validate(dim);
  if (spec.bits != 2) {
    throw Error(ErrorCode::kUsage,
                "rows stored with " + std::to_string(spec.bits) + " bits are not quantised");
  }
  group_ = spec.group_size == 0 ? dim : spec.group_size;
  clip_index_ = ClipIndex(spec.clip, dim);
  clipped_.resize(static_cast<size_t>(dim));
  codes_.resize(static_cast<size_t>(dim));
  scale_.resize(static_cast<size_t>(groups()));
  zero_.resize(static_cast<size_t>(groups()));
}

void RowQuantiser::EncodeMinMax(const float* row, int32_t* codes, float* scale, float* zero) const {
  for (int64_t g = 0; g < groups(); ++g) {
    const float* const x = row + g * group_;
    int32_t* const out = codes + g * group_;
    const Extremes extremes = FindExtremes(x, group_);
    const float range = extremes.max - extremes.min;
    const float s = (range > kSmallestRange ? range : kSmallestRange) / 3.0F;
    const float z = (0.0F - extremes.min) / s;
    for (int64_t i = 0; i < group_; ++i) {
      float t = x[i] / s + z + 0.5F;
      // Limits that also catch NaN (from infinity minus infinity), so that the cast is defined.
      t = t > 0.0F ? t : 0.0F;
      t = t < 3.0F ? t : 3.0F;
      out[i] = static_cast<int32_t>(t);
    }
    scale[g] = s;
    zero[g] = z;
  }
}

void RowQuantiser::EncodeLloydMax(const float* row, int32_t* codes, float* scale,
                                  float* zero) const {
  const auto n = static_cast<float>(dim_);
  const float mean = PairwiseSum(row, dim_) / n;
  std::vector<float> squares(static_cast<size_t>(dim_));
  for (int64_t i = 0; i < dim_; ++i) {
    const float centred = row[i] - mean;
    squares[static_cast<size_t>(i)] = centred * centred;
  }
  const float variance = PairwiseSum(squares.data(), dim_) / n;
  const float sd = std::sqrt(variance + 1e-8F);
  for (int64_t i = 0; i < dim_; ++i) {
    const float t = (row[i] - mean) / sd;
    codes[i] =
        (t >= -kLloydThreshold ? 1 : 0) + (t >= 0.0F ? 1 : 0) + (t >= kLloydThreshold ? 1 : 0);
  }
  constexpr auto step = static_cast<float>(kLloydSpan / 3 * kLloydRatio);
  scale[0] = step * sd;
  zero[0] = 1.5F - mean / scale[0];
}

void RowQuantiser::Encode(const float* row, int32_t* codes, float* scale, float* zero) {
  const float* source = row;
  if (clip_index_ >= 0) {
    const float threshold = spec_.clip_mode == ClipMode::kSort
                                ? OrderStatistic(row, dim_, clip_index_)
                                : BisectedThreshold(row, dim_, clip_index_);
    std::copy_n(row, dim_, clipped_.data());
    Clamp(clipped_.data(), dim_, threshold);
    source = clipped_.data();
  }
  if (spec_.codebook == Codebook::kLloydMax) {
    EncodeLloydMax(source, codes, scale, zero);
  } else {
    EncodeMinMax(source, codes, scale, zero);
  }
}

void RowQuantiser::Reconstruct(float* row) {
  Encode(row, codes_.data(), scale_.data(), zero_.data());
  for (int64_t g = 0; g < groups(); ++g) {
    const auto at = static_cast<size_t>(g);
    DecodeGroup(codes_.data() + g * group_, group_, RoundToScaleType(scale_[at], spec_.scale_type),
                RoundToScaleType(zero_[at], spec_.scale_type), spec_.scale_type, row + g * group_);
  }
}

QuantisedRows Quantise(MatrixView<const float> x, const QuantiserSpec& spec, int threads) {
  const RowQuantiser prototype(spec, x.cols);
  QuantisedRows out;
  out.rows = x.rows;
  out.dim = x.cols;
  out.groups = prototype.groups();
  out.scale_type = spec.scale_type;
  out.packed.resize(static_cast<size_t>(x.rows * x.cols / 4));
  out.scale.resize(static_cast<size_t>(x.rows * out.groups));
  out.zero.resize(out.scale.size());
  const int64_t tasks = (x.rows + kRowsPerTask - 1) / kRowsPerTask;
  ParallelFor(tasks, threads, [&](int64_t task) {
    RowQuantiser quantiser = prototype;
    std::vector<int32_t> codes(static_cast<size_t>(x.cols));
    std::vector<uint8_t> bytes(static_cast<size_t>(x.cols));
    const int64_t end = std::min(x.rows, (task + 1) * kRowsPerTask);
    for (int64_t i = task * kRowsPerTask; i < end; ++i) {
      if (!AllFinite(x.Row(i), x.cols)) {
        throw Error(ErrorCode::kNumeric,
                    "row " + std::to_string(i) + " to be quantised holds NaN or infinity");
      }
      float* const scale = out.scale.data() + i * out.groups;
      float* const zero = out.zero.data() + i * out.groups;
      quantiser.Encode(x.Row(i), codes.data(), scale, zero);
      for (int64_t g = 0; g < out.groups; ++g) {
        scale[g] = RoundToScaleType(scale[g], spec.scale_type);
        zero[g] = RoundToScaleType(zero[g], spec.scale_type);
      }
      std::copy(codes.begin(), codes.end(), bytes.begin());
      PackQuarters(bytes.data(), x.cols, out.packed.data() + i * (x.cols / 4));
    }
  });
  return out;
}

void Dequantise(const QuantisedRows& stored, MatrixView<float> x_hat) {
  OSCAR_CHECK(x_hat.rows == stored.rows && x_hat.cols == stored.dim);
  const int64_t group = stored.dim / stored.groups;
  std::vector<uint8_t> bytes(static_cast<size_t>(stored.dim));
  std::vector<int32_t> codes(static_cast<size_t>(stored.dim));
  for (int64_t i = 0; i < stored.rows; ++i) {
    UnpackQuarters(stored.packed.data() + i * (stored.dim / 4), stored.dim, bytes.data());
    std::copy(bytes.begin(), bytes.end(), codes.begin());
    for (int64_t g = 0; g < stored.groups; ++g) {
      const auto at = static_cast<size_t>(i * stored.groups + g);
      DecodeGroup(codes.data() + g * group, group, stored.scale[at], stored.zero[at],
                  stored.scale_type, x_hat.Row(i) + g * group);
    }
  }
}

}  // namespace oscar
