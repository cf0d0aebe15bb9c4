#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/twin.h"

namespace oscar {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t SlotAt(const SlotList& list, int64_t index) {
  return list.type == DType::kI64 ? static_cast<const int64_t*>(list.data)[index]
                                  : static_cast<const int32_t*>(list.data)[index];
}

float ScaleAt(const void* data, DType type, int64_t index) {
  switch (type) {
    case DType::kF16: {
      const float x = ToFloat(static_cast<const Float16*>(data)[index]);
      return std::clamp(x, -65504.0F, 65504.0F);
    }
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

// One (token, head) of the quantised tier.
struct QuantisedRow {
  std::vector<float> codes;        // [dim]
  std::vector<float> scale, zero;  // [groups]
};

class CacheReader {
 public:
  CacheReader(const CacheShape& shape, const DecodeInputs& in) : shape_(shape), in_(in) {}

  // The reconstruction of row (token, head) of keys or values of a tier.
  void Row(Tier tier, int64_t token, int64_t head, bool value, std::vector<double>& x) const {
    if (tier == Tier::kRows) {
      const int64_t slot = SlotAt(in_.row_slots, token);
      const BFloat16* row =
          (value ? in_.rows.v : in_.rows.k) + (slot * shape_.heads + head) * shape_.dim;
      for (size_t d = 0; d < x.size(); ++d) x[d] = static_cast<double>(ToFloat(row[d]));
      return;
    }
    const QuantisedRow row = Quantised(token, head, value);
    const int64_t group = shape_.dim / shape_.groups;
    for (int64_t d = 0; d < shape_.dim; ++d) {
      const auto g = static_cast<size_t>(d / group);
      x[static_cast<size_t>(d)] = (static_cast<double>(row.codes[static_cast<size_t>(d)]) -
                                   static_cast<double>(row.zero[g])) *
                                  static_cast<double>(row.scale[g]);
    }
  }

  QuantisedRow Quantised(int64_t token, int64_t head, bool value) const {
    const int64_t at = SlotAt(in_.quantised_slots, token) * shape_.heads + head;
    const int64_t bytes = shape_.CodeBytes();
    const uint8_t* packed = (value ? in_.quantised.v_codes : in_.quantised.k_codes) + at * bytes;
    const void* scales = value ? in_.quantised.v_scales : in_.quantised.k_scales;
    QuantisedRow row;
    row.codes.resize(static_cast<size_t>(shape_.dim));
    for (int64_t d = 0; d < shape_.dim; ++d) {
      row.codes[static_cast<size_t>(d)] =
          static_cast<float>((packed[d % bytes] >> (2 * (d / bytes))) & 3);
    }
    for (int64_t g = 0; g < shape_.groups; ++g) {
      row.scale.push_back(ScaleAt(scales, shape_.scale_type, (at * shape_.groups + g) * 2));
      row.zero.push_back(ScaleAt(scales, shape_.scale_type, (at * shape_.groups + g) * 2 + 1));
    }
    return row;
  }

 private:
  const CacheShape& shape_;
  const DecodeInputs& in_;
};

// o R^T in place, R bf16 [dim, dim].
void RotateBack(const BFloat16* rotation, std::vector<double>& o) {
  const std::vector<double> x = o;
  const size_t dim = o.size();
  for (size_t j = 0; j < dim; ++j) {
    double sum = 0;
    for (size_t d = 0; d < dim; ++d)
      sum += x[d] * static_cast<double>(ToFloat(rotation[j * dim + d]));
    o[j] = sum;
  }
}

void Store(const DecodeShape& shape, const DecodeInputs& in, const DecodeOutputs& out, int64_t row,
           std::vector<double> o, double lse) {
  const int64_t dim = shape.cache.dim;
  if (in.v_rotation != nullptr) {
    const int64_t head = row % shape.q_heads / shape.GroupSize();
    RotateBack(in.v_rotation + (in.v_rotation_per_head ? head * dim * dim : 0), o);
  }
  for (int64_t d = 0; d < dim; ++d) {
    const auto x = static_cast<float>(o[static_cast<size_t>(d)]);
    if (out.o_type == DType::kBF16) {
      static_cast<BFloat16*>(out.o)[row * dim + d] = ToBFloat16(x);
    } else {
      static_cast<float*>(out.o)[row * dim + d] = x;
    }
  }
  if (out.lse != nullptr) out.lse[row] = static_cast<float>(lse);
}

// A softmax in progress: maximum, sum of exponentials, weighted sum of values.
struct Softmax {
  explicit Softmax(int64_t dim) : o(static_cast<size_t>(dim)) {}
  void Add(double score, const std::vector<double>& value) {
    const double top = std::max(max, score);
    if (top == -kInfinity) return;
    const double old = std::exp(max - top), fresh = std::exp(score - top);
    sum = sum * old + fresh;
    for (size_t d = 0; d < o.size(); ++d) o[d] = o[d] * old + fresh * value[d];
    max = top;
  }
  std::vector<double> o;
  double max = -kInfinity;
  double sum = 0;
};

void CheckTwin(const DecodeShape& shape, const DecodeInputs& in, const DecodeOutputs& out) {
  CheckDecodeShape(shape);
  CheckSlotType(in.quantised_slots, "the slot list of the quantised tier");
  CheckSlotType(in.row_slots, "the slot list of the bf16 tier");
  if (in.q == nullptr || out.o == nullptr) {
    throw Error(ErrorCode::kUsage, "decode attention needs queries and an output");
  }
}

// Queries of one KV head in half precision, scaled by a power of two so that the largest is below
// 2^9, as the kernel holds them.
struct HalfQuery {
  std::vector<float> q;  // the rounded values, scale removed
  std::vector<float> group_sum;
  HalfQuery(const BFloat16* row, const CacheShape& shape) {
    float largest = 0;
    for (int64_t d = 0; d < shape.dim; ++d) largest = std::max(largest, std::abs(ToFloat(row[d])));
    const int exponent =
        largest > 0 && std::isfinite(largest) ? std::clamp(8 - std::ilogb(largest), -100, 100) : 0;
    group_sum.assign(static_cast<size_t>(shape.groups), 0);
    for (int64_t d = 0; d < shape.dim; ++d) {
      const int field = static_cast<int>(d / (shape.dim / 4) + 4 * (d % 2));
      const int up =
          exponent + kKeyFieldTop - (static_cast<int>(kKeyFieldBits >> (4 * field)) & 15);
      const float half = ToFloat(ToFloat16(std::ldexp(ToFloat(row[d]), up)));
      q.push_back(std::ldexp(half, -up));
      group_sum[static_cast<size_t>(d / (shape.dim / shape.groups))] += q.back();
    }
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
    const HalfQuery query(in_.q + q_row * cache.dim, cache);
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
              int64_t q_row, const HalfQuery& query) const {
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
    if (!(sum > 0)) return partial;
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

void DecodeReference(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                     const DecodeInputs& in, const DecodeOutputs& out) {
  CheckTwin(shape, in, out);
  const CacheShape& cache = shape.cache;
  const CacheReader reader(cache, in);
  std::vector<double> key(static_cast<size_t>(cache.dim)), value(key.size());
  int64_t begin[2] = {0, 0};
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int64_t tokens[2] = {lengths[r].quantised, lengths[r].rows};
    for (int64_t head = 0; head < cache.heads; ++head) {
      const int64_t first = static_cast<int64_t>(r) * shape.q_heads + head * shape.GroupSize();
      std::vector<Softmax> running(static_cast<size_t>(shape.GroupSize()), Softmax(cache.dim));
      for (const Tier tier : {Tier::kQuantised, Tier::kRows}) {
        const auto which = static_cast<size_t>(tier);
        for (int64_t t = begin[which]; t < begin[which] + tokens[which]; ++t) {
          reader.Row(tier, t, head, false, key);
          reader.Row(tier, t, head, true, value);
          for (size_t j = 0; j < running.size(); ++j) {
            const BFloat16* q = in.q + (first + static_cast<int64_t>(j)) * cache.dim;
            double dot = 0;
            for (size_t d = 0; d < key.size(); ++d)
              dot += static_cast<double>(ToFloat(q[d])) * key[d];
            running[j].Add(dot * static_cast<double>(in.logit_scale), value);
          }
        }
      }
      for (size_t j = 0; j < running.size(); ++j) {
        Softmax& s = running[j];
        for (double& x : s.o) x = s.sum > 0 ? x / s.sum : 0;
        Store(shape, in, out, first + static_cast<int64_t>(j), s.o,
              s.sum > 0 ? s.max + std::log(s.sum) : -kInfinity);
      }
    }
    begin[0] += tokens[0];
    begin[1] += tokens[1];
  }
}

void DecodeTwin(const DecodeShape& shape, const DecodePlan& plan, const DecodeInputs& in,
                const DecodeOutputs& out) {
  CheckTwin(shape, in, out);
  const FactoredPiece factored(shape, in);
  for (int64_t row = 0; row < plan.requests * shape.q_heads; ++row) {
    const int64_t head = row % shape.q_heads / shape.GroupSize();
    const auto at = static_cast<size_t>(row / shape.q_heads * plan.head_blocks +
                                        head / (shape.cache.heads / plan.head_blocks));
    Softmax merged(shape.cache.dim);
    for (int32_t i = plan.partial_begin[at]; i < plan.partial_begin[at + 1]; ++i) {
      const Partial partial = factored.Run(plan.pieces[static_cast<size_t>(i)], head, row);
      merged.Add(partial.lse * 0.6931471805599453, partial.o);
    }
    for (double& x : merged.o) x = merged.sum > 0 ? x / merged.sum : 0;
    Store(shape, in, out, row, merged.o,
          merged.sum > 0 ? merged.max + std::log(merged.sum) : -kInfinity);
  }
}

}  // namespace oscar
