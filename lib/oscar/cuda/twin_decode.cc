// DecodeTwin: the pieces of a plan one by one, as the kernel factors them, and their sums.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/twin.h"
#include "oscar/cuda/twin_reference.h"

namespace oscar {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A query as the kernel holds it: an integer times a power of two (kFixedBits), or in half
// precision, scaled by a power of two so that the largest number is below 2^9.
struct RoundedQuery {
  std::vector<float> q;
  std::vector<float> group_sum;

  RoundedQuery(const BFloat16* row, const DecodeShape& shape) {
    const CacheShape& cache = shape.cache;
    float largest = 0;
    for (int64_t d = 0; d < cache.dim; ++d) largest = std::max(largest, std::abs(ToFloat(row[d])));
    const bool fixed = shape.GroupSize() <= 4;
    // What is two steps of bf16 below a power of two counts as that.
    const int power =
        largest > 0 && std::isfinite(largest)
            ? std::ilogb(largest + (fixed ? std::ldexp(1.0, std::ilogb(largest) - 6) : 0.0))
            : 8;
    group_sum.assign(static_cast<size_t>(cache.groups), 0);
    for (int64_t d = 0; d < cache.dim; ++d) {
      const float x = ToFloat(row[d]);
      q.push_back(
          fixed ? Fixed(x, std::max(power, -92), d / (cache.dim / 4) % 2 != 0)
                : Half(x, std::clamp(8 - power, -100, 100), d / (cache.dim / 4) + 4 * (d % 2)));
      group_sum[static_cast<size_t>(d / (cache.dim / cache.groups))] += q.back();
    }
  }

 private:
  static float Fixed(float x, int power, bool odd_field) {
    const int up = static_cast<int>(kFixedBits) - power - (odd_field ? 2 : 0);
    return std::ldexp(std::nearbyint(std::ldexp(x, up)), -up);
  }
  static float Half(float x, int exponent, int64_t field) {
    const int up = exponent + kKeyFieldTop - (static_cast<int>(kKeyFieldBits >> (4 * field)) & 15);
    return std::ldexp(ToFloat(ToFloat16(std::ldexp(x, up))), -up);
  }
};

float HalfRounded(float x) { return ToFloat(ToFloat16(x)); }

// The partial result of one piece for one query head, in the kernel's factored form.
struct Partial {
  std::vector<double> o;
  double lse;  // base 2
};

class FactoredPiece {
 public:
  FactoredPiece(const DecodeShape& shape, const DecodeInputs& in) : shape_(shape), in_(in) {}

  Partial Run(const PlanPiece& piece, int64_t head, int64_t q_row) const {
    const CacheShape& cache = shape_.cache;
    const CacheReader reader(cache, in_);
    const RoundedQuery query(in_.q + q_row * cache.dim, shape_);
    const float log2_scale = in_.logit_scale * 1.4426950408889634F;
    const auto tokens = static_cast<size_t>(piece.tokens);
    std::vector<float> scores(tokens);
    float top = -std::numeric_limits<float>::infinity();
    for (size_t t = 0; t < tokens; ++t) {
      scores[t] =
          Score(reader, piece, piece.slot_begin + static_cast<int64_t>(t), head, q_row, query) *
          log2_scale;
      top = std::max(top, scores[t]);
    }
    return Accumulate(reader, piece, head, scores, top);
  }

 private:
  float Score(const CacheReader& reader, const PlanPiece& piece, int64_t token, int64_t head,
              int64_t q_row, const RoundedQuery& query) const {
    const CacheShape& cache = shape_.cache;
    if (piece.tier == Tier::kRows) {
      std::vector<double> x(static_cast<size_t>(cache.dim));
      reader.Row(Tier::kRows, token, head, false, x);
      float dot = 0;
      for (size_t d = 0; d < x.size(); ++d) {
        dot +=
            ToFloat(in_.q[q_row * cache.dim + static_cast<int64_t>(d)]) * static_cast<float>(x[d]);
      }
      return dot;
    }
    const QuantisedRow row = reader.Quantised(token, head, false);
    const int64_t group = cache.dim / cache.groups;
    float score = 0;
    for (int64_t g = 0; g < cache.groups; ++g) {
      float dot = 0;
      for (int64_t d = g * group; d < (g + 1) * group; ++d) {
        dot += query.q[static_cast<size_t>(d)] * row.codes[static_cast<size_t>(d)];
      }
      const auto at = static_cast<size_t>(g);
      score += row.scale[at] * (dot - row.zero[at] * query.group_sum[at]);
    }
    return score;
  }

  // The least e >= 0 with value scales of the piece below 2^e.
  int LargestScaleExponent(const CacheReader& reader, const PlanPiece& piece, int64_t head) const {
    if (piece.tier == Tier::kRows) return 0;
    float largest = 0;
    for (int64_t t = piece.slot_begin; t < piece.slot_begin + piece.tokens; ++t) {
      for (const float scale : reader.Quantised(t, head, true).scale)
        largest = std::max(largest, scale);
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    return std::max(0, exponent);
  }

  Partial Accumulate(const CacheReader& reader, const PlanPiece& piece, int64_t head,
                     const std::vector<float>& scores, float top) const {
    const CacheShape& cache = shape_.cache;
    std::vector<float> o(static_cast<size_t>(cache.dim));
    std::vector<double> x(o.size());
    const int64_t group = cache.dim / cache.groups;
    // Half precision is scale free down to its subnormals; a power of two keeps p * scale in range.
    const float boost = std::ldexp(1.0F, 8 - LargestScaleExponent(reader, piece, head));
    std::vector<float> zero(static_cast<size_t>(cache.groups));
    float sum = 0;
    for (size_t t = 0; t < scores.size(); ++t) {
      const float p = std::exp2(scores[t] - top);
      sum += p;
      const int64_t token = piece.slot_begin + static_cast<int64_t>(t);
      if (piece.tier == Tier::kRows) {
        reader.Row(Tier::kRows, token, head, true, x);
        for (size_t d = 0; d < o.size(); ++d) o[d] += p * static_cast<float>(x[d]);
        continue;
      }
      const QuantisedRow row = reader.Quantised(token, head, true);
      for (int64_t g = 0; g < cache.groups; ++g) {
        const auto at = static_cast<size_t>(g);
        const float exact = p * row.scale[at] * boost;
        const float weight = HalfRounded(exact);
        const float near = std::clamp(row.zero[at], 0.0F, 3.0F);
        zero[at] += weight * near + exact * (row.zero[at] - near);
        for (int64_t d = g * group; d < (g + 1) * group; ++d) {
          o[static_cast<size_t>(d)] += weight * row.codes[static_cast<size_t>(d)];
        }
      }
    }
    Partial partial{std::vector<double>(o.size()), -kInfinity};
    if (sum == 0) return partial;
    for (size_t d = 0; d < o.size(); ++d) {
      const float value =
          piece.tier == Tier::kRows ? o[d] : (o[d] - zero[d / static_cast<size_t>(group)]) / boost;
      partial.o[d] = static_cast<double>(value / sum);
    }
    partial.lse = static_cast<double>(top + std::log2(sum));
    return partial;
  }

  const DecodeShape& shape_;
  const DecodeInputs& in_;
};

}  // namespace

void DecodeTwin(const DecodeShape& shape, const DecodePlan& plan, const DecodeInputs& in,
                const DecodeOutputs& out) {
  CheckTwin(shape, in, out);
  const FactoredPiece factored(shape, in);
  for (int64_t row = 0; row < plan.requests * shape.q_heads; ++row) {
    const int64_t head = row % shape.q_heads / shape.GroupSize();
    const auto at = static_cast<size_t>(row / shape.q_heads * plan.head_blocks +
                                        head / (shape.cache.heads / plan.head_blocks));
    RunningSoftmax merged(shape.cache.dim);
    for (int32_t i = plan.partial_begin[at]; i < plan.partial_begin[at + 1]; ++i) {
      const Partial partial = factored.Run(plan.pieces[static_cast<size_t>(i)], head, row);
      merged.Add(partial.lse * 0.6931471805599453, partial.o);
    }
    for (double& x : merged.o) x = merged.sum != 0 ? x / merged.sum : 0;
    StoreOutput(shape, in, out, row, merged.o,
                merged.sum != 0 ? merged.max + std::log(merged.sum) : -kInfinity);
  }
}

}  // namespace oscar
