#include "oscar/model/decoder_layer.h"

#include <algorithm>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/model/layer_kernels.h"
#include "oscar/model/torch_support.h"

namespace oscar {
namespace {

// Tokens that pass through a projection or the MLP at a time: large enough for full speed of the
// matrix products, small enough that the MLP's activations stay in the last-level cache.
constexpr int64_t kTokenBlock = 512;
// Rows of elementwise work for one thread, at least.
constexpr int64_t kGrain = 16;

template <typename Body>
void InTokenBlocks(int64_t tokens, const Body& body) {
  for (int64_t begin = 0; begin < tokens; begin += kTokenBlock) {
    body(begin, std::min(begin + kTokenBlock, tokens));
  }
}

at::Tensor Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (bias.defined()) return at::addmm(bias, x, weight.t());
  return at::mm(x, weight.t());
}

// x += y W^T (+ bias).
void AddProduct(at::Tensor x, const at::Tensor& y, const at::Tensor& weight,
                const at::Tensor& bias) {
  x.addmm_(y, weight.t());
  if (bias.defined()) x.add_(bias);
}

at::Tensor TurnPairs(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = cos.size(1);
  const at::Tensor first = x.narrow(2, 0, half);
  const at::Tensor second = x.narrow(2, half, half);
  const at::Tensor c = cos.unsqueeze(1);
  const at::Tensor s = sin.unsqueeze(1);
  return at::cat(
      {first * c - second * s, second * c + first * s, x.narrow(2, 2 * half, x.size(2) - 2 * half)},
      2);
}

}  // namespace

RopeTables::RopeTables(const RopeSpec& rope, int64_t positions, at::Device device) {
  const auto pairs = static_cast<int64_t>(rope.inv_freq.size());
  const at::Tensor frequencies = at::empty({pairs}, at::kFloat);
  std::transform(rope.inv_freq.begin(), rope.inv_freq.end(), frequencies.data_ptr<float>(),
                 [](double x) { return static_cast<float>(x); });
  const at::Tensor angles = at::outer(at::arange(positions, at::kFloat), frequencies);
  const auto factor = static_cast<float>(rope.attention_factor);
  cos = (at::cos(angles) * factor).to(device);
  sin = (at::sin(angles) * factor).to(device);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps, bool fused) {
  if (!fused) {
    return x * at::rsqrt(x.square().mean(-1, true) + static_cast<double>(eps)) * weight;
  }
  at::Tensor out = at::empty_like(x);
  const int64_t dim = x.size(1);
  ParallelRows(x.size(0), kGrain, [&](int64_t begin, int64_t end) {
    RmsNormRows(x.const_data_ptr<float>() + begin * dim, weight.const_data_ptr<float>(), eps,
                end - begin, dim, out.data_ptr<float>() + begin * dim);
  });
  return out;
}

DecoderLayer::DecoderLayer(const ModelConfig& config, const LayerShape& shape, LayerWeights weights,
                           at::Device device, bool fused)
    : shape_(shape),
      eps_(static_cast<float>(config.rms_eps)),
      fused_(fused && device.is_cpu()),
      device_(device),
      weights_(std::move(weights)) {
  LayerWeights& w = weights_;
  const int64_t hidden = config.hidden;
  const auto optional = [&](const std::vector<float>& x) {
    return x.empty() ? at::Tensor() : Wrap(x, {static_cast<int64_t>(x.size())}, device);
  };
  const auto matrix = [&](const std::vector<float>& x, int64_t rows, int64_t cols) {
    return Wrap(x, {rows, cols}, device);
  };
  attn_norm_ = Wrap(w.attn_norm, {hidden}, device);
  ffn_norm_ = Wrap(w.ffn_norm, {hidden}, device);
  q_norm_ = optional(w.q_norm);
  k_norm_ = optional(w.k_norm);
  // One product for all three projections.
  const int64_t q_rows = shape.q_heads * shape.k_dim;
  const int64_t k_rows = shape.kv_heads * shape.k_dim;
  const int64_t v_rows = shape.kv_heads * shape.v_dim;
  qkv_.weight = at::cat(
      {matrix(w.q, q_rows, hidden), matrix(w.k, k_rows, hidden), matrix(w.v, v_rows, hidden)});
  if (!w.q_bias.empty()) {
    qkv_.bias = at::cat({optional(w.q_bias), optional(w.k_bias), optional(w.v_bias)});
  }
  w.q = w.k = w.v = {};
  o_ = {matrix(w.o, hidden, shape.q_heads * shape.v_dim), optional(w.o_bias)};
  gate_ = {matrix(w.gate, config.intermediate, hidden), optional(w.gate_bias)};
  up_ = {matrix(w.up, config.intermediate, hidden), optional(w.up_bias)};
  down_ = {matrix(w.down, hidden, config.intermediate), optional(w.down_bias)};
}

at::Tensor DecoderLayer::Norm(const at::Tensor& x, const at::Tensor& weight) const {
  return RmsNorm(x, weight, eps_, fused_);
}

// Columns of a projection -> heads, with RMSNorm (norm may be undefined) and RoPE (cos may be
// undefined); ATen operations.
at::Tensor DecoderLayer::SplitHeads(const at::Tensor& x, int64_t heads, int64_t dim,
                                    const at::Tensor& norm, const at::Tensor& cos,
                                    const at::Tensor& sin) const {
  at::Tensor out = x.reshape({x.size(0), heads, dim});
  if (norm.defined()) out = RmsNorm(out, norm, eps_, false);
  return cos.defined() ? TurnPairs(out, cos, sin) : out;
}

void DecoderLayer::ProjectRows(const at::Tensor& hidden, const RopeTables& rope, int64_t begin,
                               int64_t end, const Heads& out) const {
  const int64_t rows = end - begin;
  const at::Tensor x =
      Multiply(Norm(hidden.narrow(0, begin, rows), attn_norm_), qkv_.weight, qkv_.bias);
  const at::Tensor cos = rope.cos.narrow(0, begin, rows);
  const at::Tensor sin = rope.sin.narrow(0, begin, rows);
  int64_t column = 0;
  const auto split = [&](const at::Tensor& to, const at::Tensor& norm, bool turn) {
    const int64_t heads = to.size(1);
    const int64_t dim = to.size(2);
    const at::Tensor part = x.narrow(1, column, heads * dim);
    column += heads * dim;
    if (!fused_) {
      to.narrow(0, begin, rows)
          .copy_(SplitHeads(part, heads, dim, norm, turn ? cos : at::Tensor(), sin));
      return;
    }
    const HeadSplit how{heads, dim, norm.defined() ? norm.const_data_ptr<float>() : nullptr, eps_,
                        turn ? 2 * cos.size(1) : 0};
    ParallelRows(rows, kGrain, [&](int64_t first, int64_t last) {
      const int64_t half = cos.size(1);
      SplitHeadRows(part.const_data_ptr<float>() + first * part.stride(0), part.stride(0),
                    cos.const_data_ptr<float>() + first * half,
                    sin.const_data_ptr<float>() + first * half, last - first, how,
                    to.data_ptr<float>() + (begin + first) * heads * dim);
    });
  };
  split(out.q, q_norm_, true);
  split(out.k, k_norm_, true);
  split(out.v, {}, false);
}

DecoderLayer::Heads DecoderLayer::Project(const at::Tensor& hidden, const RopeTables& rope) const {
  const int64_t tokens = hidden.size(0);
  const auto make = [&](int64_t heads, int64_t dim) {
    return at::empty({tokens, heads, dim}, hidden.options());
  };
  Heads out{make(shape_.q_heads, shape_.k_dim), make(shape_.kv_heads, shape_.k_dim),
            make(shape_.kv_heads, shape_.v_dim)};
  InTokenBlocks(tokens,
                [&](int64_t begin, int64_t end) { ProjectRows(hidden, rope, begin, end, out); });
  return out;
}

// x += down(silu(gate(norm(x))) * up(norm(x))).
void DecoderLayer::MlpRows(const at::Tensor& x) const {
  const at::Tensor normed = Norm(x, ffn_norm_);
  at::Tensor gate = Multiply(normed, gate_.weight, gate_.bias);
  const at::Tensor up = Multiply(normed, up_.weight, up_.bias);
  if (fused_) {
    ParallelRows(gate.numel(), kGrain * gate.size(1), [&](int64_t begin, int64_t end) {
      SiluTimes(up.const_data_ptr<float>() + begin, end - begin, gate.data_ptr<float>() + begin);
    });
  } else {
    gate = at::silu(gate).mul_(up);
  }
  AddProduct(x, gate, down_.weight, down_.bias);
}

void DecoderLayer::Finish(const at::Tensor& hidden, const at::Tensor& o,
                          const at::Tensor& out) const {
  const at::Tensor outputs = o.reshape({o.size(0), -1});
  InTokenBlocks(hidden.size(0), [&](int64_t begin, int64_t end) {
    at::Tensor rows = out.narrow(0, begin, end - begin);
    at::addmm_out(rows, hidden.narrow(0, begin, end - begin), outputs.narrow(0, begin, end - begin),
                  o_.weight.t());
    if (o_.bias.defined()) rows.add_(o_.bias);
    MlpRows(rows);
  });
}

}  // namespace oscar
