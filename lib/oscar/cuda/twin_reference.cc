// DecodeReference, and what DecodeTwin shares of it.
#include "oscar/cuda/twin_reference.h"

#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
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

}  // namespace

void CacheReader::Row(Tier tier, int64_t token, int64_t head, bool value,
                      std::vector<double>& x) const {
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

QuantisedRow CacheReader::Quantised(int64_t token, int64_t head, bool value) const {
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

void RunningSoftmax::Add(double score, const std::vector<double>& value) {
  const double top = std::max(score, max);  // in this order, a score that is NaN stays
  if (top == -kInfinity) return;
  const double old = std::exp(max - top), fresh = std::exp(score - top);
  sum = sum * old + fresh;
  for (size_t d = 0; d < o.size(); ++d) o[d] = o[d] * old + fresh * value[d];
  max = top;
}

void CheckTwin(const DecodeShape& shape, const DecodeInputs& in, const DecodeOutputs& out) {
  CheckDecodeShape(shape);
  CheckSlotType(in.quantised_slots, "the slot list of the quantised tier");
  CheckSlotType(in.row_slots, "the slot list of the bf16 tier");
  if (in.q == nullptr || out.o == nullptr) {
    throw Error(ErrorCode::kUsage, "decode attention needs queries and an output");
  }
}

void StoreOutput(const DecodeShape& shape, const DecodeInputs& in, const DecodeOutputs& out,
                 int64_t row, std::vector<double> o, double lse) {
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
      std::vector<RunningSoftmax> running(static_cast<size_t>(shape.GroupSize()),
                                          RunningSoftmax(cache.dim));
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
        RunningSoftmax& s = running[j];
        for (double& x : s.o) x = s.sum != 0 ? x / s.sum : 0;
        StoreOutput(shape, in, out, first + static_cast<int64_t>(j), s.o,
                    s.sum != 0 ? s.max + std::log(s.sum) : -kInfinity);
      }
    }
    begin[0] += tokens[0];
    begin[1] += tokens[1];
  }
}

}  // namespace oscar
