// The decoder written down as its formulas, in float64, one number at a time. The reference for the
// runner on small models: no code in common with it.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/weights/model_weights.h"

namespace oscar::test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // [tokens][width]

struct NaiveAttention {
  Rows q, k, v, o;  // width heads * dim
};

// Replaces keys and values; use(i, j) says whether query i takes key j from the replacement.
struct NaiveCache {
  using Replace = std::function<void(const Rows& k, const Rows& v, Rows& k_hat, Rows& v_hat)>;
  Replace apply;
  std::function<bool(int64_t, int64_t)> use;
  Replace window = nullptr;  // the rows of all other pairs; none: the model's own
};

class NaiveModel {
 public:
  explicit NaiveModel(const ModelWeights& weights) : weights_(weights), c_(weights.config()) {}

  Rows Embed(const std::vector<int32_t>& ids) const {
    const std::vector<float> flat = weights_.EmbeddingRows(ids);
    Rows out;
    for (size_t t = 0; t < ids.size(); ++t) {
      const auto begin = flat.begin() + static_cast<int64_t>(t) * c_.hidden;
      out.emplace_back(begin, begin + c_.hidden);
    }
    return out;
  }

  // One layer; `cache` may be null.
  Rows Layer(int64_t layer, const Rows& hidden, const NaiveCache* cache,
             NaiveAttention* seen = nullptr) const {
    const LayerWeights w = weights_.LoadLayer(layer, 1);
    NaiveAttention a;
    for (size_t t = 0; t < hidden.size(); ++t) {
      const Row x = Norm(hidden[t], w.attn_norm);
      a.q.push_back(Heads(Linear(x, w.q, w.q_bias), c_.q_heads, w.q_norm, t));
      a.k.push_back(Heads(Linear(x, w.k, w.k_bias), c_.kv_heads, w.k_norm, t));
      a.v.push_back(Linear(x, w.v, w.v_bias));
    }
    Rows k_hat = a.k;
    Rows v_hat = a.v;
    if (cache != nullptr) cache->apply(a.k, a.v, k_hat, v_hat);
    if (cache != nullptr && cache->window) {
      const Rows k = a.k, v = a.v;
      cache->window(k, v, a.k, a.v);
    }
    const auto tokens = static_cast<int64_t>(hidden.size());
    const LayerShape shape = c_.ShapeOfLayer(layer);
    for (int64_t i = 0; i < tokens; ++i) {
      a.o.push_back(Attend(shape, a, k_hat, v_hat, cache, i));
    }
    Rows out = hidden;
    for (size_t t = 0; t < hidden.size(); ++t) {
      Add(out[t], Linear(a.o[t], w.o, w.o_bias));
      const Row x = Norm(out[t], w.ffn_norm);
      Row gate = Linear(x, w.gate, w.gate_bias);
      const Row up = Linear(x, w.up, w.up_bias);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      Add(out[t], Linear(gate, w.down, w.down_bias));
    }
    if (seen != nullptr) *seen = std::move(a);
    return out;
  }

  Row FinalNorm(const Row& hidden) const { return Norm(hidden, weights_.FinalNorm()); }
  Row Logits(const Row& hidden) const {
    return Linear(FinalNorm(hidden), weights_.HeadRowsRange(0, c_.vocab, 1), {});
  }

 private:
  static void Add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static Row Linear(const Row& x, const std::vector<float>& weight,
                    const std::vector<float>& bias) {
    Row out(weight.size() / x.size());
    for (size_t r = 0; r < out.size(); ++r) {
      out[r] = bias.empty() ? 0 : static_cast<double>(bias[r]);
      for (size_t i = 0; i < x.size(); ++i) {
        out[r] += static_cast<double>(weight[r * x.size() + i]) * x[i];
      }
    }
    return out;
  }
  Row Norm(const Row& x, const std::vector<float>& weight) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + c_.rms_eps);
    Row out = x;
    for (size_t i = 0; i < out.size(); ++i) out[i] *= scale * static_cast<double>(weight[i]);
    return out;
  }
  Row Heads(const Row& x, int64_t heads, const std::vector<float>& norm, size_t position) const {
    const auto dim = static_cast<size_t>(c_.head_dim);
    const size_t half = c_.rope.inv_freq.size();
    Row out;
    for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
      Row head(x.begin() + static_cast<int64_t>(h * dim),
               x.begin() + static_cast<int64_t>((h + 1) * dim));
      if (!norm.empty()) head = Norm(head, norm);
      Row turned = head;
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * c_.rope.inv_freq[i];
        const double cos = std::cos(angle) * c_.rope.attention_factor;
        const double sin = std::sin(angle) * c_.rope.attention_factor;
        turned[i] = head[i] * cos - head[i + half] * sin;
        turned[i + half] = head[i + half] * cos + head[i] * sin;
      }
      out.insert(out.end(), turned.begin(), turned.end());
    }
    return out;
  }
  Row Attend(const LayerShape& shape, const NaiveAttention& a, const Rows& k_hat, const Rows& v_hat,
             const NaiveCache* cache, int64_t i) const {
    const auto dim = static_cast<size_t>(c_.head_dim);
    Row out;
    for (int64_t h = 0; h < c_.q_heads; ++h) {
      const size_t q_at = static_cast<size_t>(h) * dim;
      const size_t kv_at = static_cast<size_t>(h / shape.group()) * dim;
      const auto replaced = [&](int64_t j) { return cache != nullptr && cache->use(i, j); };
      const int64_t first = shape.window > 0 ? std::max<int64_t>(0, i - shape.window + 1) : 0;
      Row logits;
      double largest = -INFINITY;
      for (int64_t j = first; j <= i; ++j) {
        const Row& key = (replaced(j) ? k_hat : a.k)[static_cast<size_t>(j)];
        double dot = 0;
        for (size_t d = 0; d < dim; ++d) {
          dot += a.q[static_cast<size_t>(i)][q_at + d] * key[kv_at + d];
        }
        logits.push_back(dot * shape.softmax_scale);
        largest = std::max(largest, logits.back());
      }
      double sum = 0;
      Row head(dim, 0.0);
      for (int64_t j = first; j <= i; ++j) {
        const double p = std::exp(logits[static_cast<size_t>(j - first)] - largest);
        const Row& value = (replaced(j) ? v_hat : a.v)[static_cast<size_t>(j)];
        sum += p;
        for (size_t d = 0; d < dim; ++d) head[d] += p * value[kv_at + d];
      }
      for (const double x : head) out.push_back(x / sum);
    }
    return out;
  }

  const ModelWeights& weights_;
  const ModelConfig& c_;
};

}  // namespace oscar::test
