// Small traces with moments computed naively from random rows.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/random.h"
#include "oscar/stats/moments.h"
#include "oscar/trace/trace.h"

namespace oscar::test {

inline LayerShape FakeShape() {
  return {.q_heads = 4,
          .kv_heads = 2,
          .k_dim = 6,
          .v_dim = 3,
          .hidden = 8,
          .softmax_scale = 0.25,
          .window = 0,
          .rope = "full"};
}

// Sequences of the given lengths with random ids; the first `rows` of them keep rows.
inline TraceHeader FakeHeader(const std::vector<int64_t>& lengths, size_t rows,
                              std::vector<int> layers, uint64_t seed = 1) {
  TraceHeader header;
  header.manifest["model_id"] = "fake";
  header.manifest["config_hash"] = "c0ffee";
  header.manifest["capture_point"] = "post_rope";
  header.manifest["seed"] = static_cast<int64_t>(seed);
  header.layers = std::move(layers);
  Random random(DeriveSeed(seed, "ids"));
  int64_t start = 0;
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(50000));
    const auto grams = SampledNgrams(ids);
    header.ngram_hashes.insert(header.ngram_hashes.end(), grams.begin(), grams.end());
    header.sequences.push_back({start, length, true, header.sequences.size() < rows,
                                Sha256Hex(ids.data(), ids.size() * sizeof(int32_t))});
    start += length;
  }
  return header;
}

// rows [tokens, heads, dim] as bfloat16 and the sums over all of them.
inline std::vector<BFloat16> FakeRows(int64_t count, Random& random) {
  std::vector<BFloat16> rows(static_cast<size_t>(count));
  for (BFloat16& x : rows) x = ToBFloat16(static_cast<float>(random.Normal()));
  return rows;
}

inline MomentTensor SumOfProducts(const std::vector<BFloat16>& rows, int64_t heads, int64_t dim) {
  MomentTensor sum{{heads, dim, dim}, std::vector<double>(static_cast<size_t>(heads * dim * dim))};
  const int64_t tokens = static_cast<int64_t>(rows.size()) / (heads * dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const BFloat16* x = rows.data() + (t * heads + h) * dim;
      for (int64_t i = 0; i < dim; ++i) {
        for (int64_t j = 0; j < dim; ++j) {
          sum.data[static_cast<size_t>((h * dim + i) * dim + j)] +=
              static_cast<double>(ToFloat(x[i])) * static_cast<double>(ToFloat(x[j]));
        }
      }
    }
  }
  return sum;
}

// A layer whose rows cover all tokens of the header; rows beyond the kept ones are cut off.
inline LayerCapture FakeLayer(int layer, const TraceHeader& header, bool with_sst = true) {
  const LayerShape shape = FakeShape();
  Random random(DeriveSeed(static_cast<uint64_t>(header.manifest.At("seed").AsInt()),
                           "layer " + std::to_string(layer)));
  int64_t tokens = 0, kept = 0;
  for (const TraceSequence& s : header.sequences) {
    tokens += s.length;
    kept += s.has_rows ? s.length : 0;
  }
  LayerCapture capture;
  capture.layer = layer;
  capture.q = FakeRows(tokens * shape.q_heads * shape.k_dim, random);
  capture.k = FakeRows(tokens * shape.kv_heads * shape.k_dim, random);
  capture.v = FakeRows(tokens * shape.kv_heads * shape.v_dim, random);
  LayerMoments& m = capture.moments;
  m.shape = shape;
  m.count = static_cast<uint64_t>(tokens);
  m.sums[Moment::kQq] = SumOfProducts(capture.q, shape.q_heads, shape.k_dim);
  m.sums[Moment::kKk] = SumOfProducts(capture.k, shape.kv_heads, shape.k_dim);
  m.sums[Moment::kVv] = SumOfProducts(capture.v, shape.kv_heads, shape.v_dim);
  if (with_sst) {
    m.sums[Moment::kSst] = m.sums[Moment::kVv];  // any sums will do here
    m.sums[Moment::kSstWeight] = {{shape.kv_heads}, {1, 2}};
    m.sst_qq_hash = HashOf(m.sums[Moment::kQq]);
  }
  capture.q.resize(static_cast<size_t>(kept * shape.q_heads * shape.k_dim));
  capture.k.resize(static_cast<size_t>(kept * shape.kv_heads * shape.k_dim));
  capture.v.resize(static_cast<size_t>(kept * shape.kv_heads * shape.v_dim));
  capture.o_proj = FakeRows(shape.hidden * shape.q_heads * shape.v_dim, random);
  return capture;
}

inline void WriteFakeTrace(const std::filesystem::path& path, const TraceHeader& header,
                           bool with_sst = true) {
  TraceWriter writer(path, header, false, false);
  for (const int layer : header.layers) writer.WriteLayer(FakeLayer(layer, header, with_sst));
  writer.Finish();
}

// Runs `action` and returns the Error it throws.
template <typename Action>
Error Thrown(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kUsage, "nothing was thrown"};
}

}  // namespace oscar::test
