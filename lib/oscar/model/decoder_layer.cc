#include "oscar/model/decoder_layer.h"

#include <algorithm>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/model/layer_kernels.h"
#include "oscar/model/torch_support.h"

namespace oscar {
namespace {

// Tokens that pass through a projection or the MLP at a time. Matrix products are fastest on many
// rows; the MLP's two activations are bounded by kBlockBytes.
constexpr int64_t kMaxTokenBlock = 2048;
constexpr int64_t kMinTokenBlock = 256;
constexpr int64_t kBlockBytes = int64_t{64} << 20;
// Rows of elementwise work for one thread, at least.
constexpr int64_t kGrain = 16;

// out = x W^T (+ bias).
void Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
              at::Tensor& out) {
  if (bias.defined()) {
    at::addmm_out(out, bias, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
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

void RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps, bool fused,
             at::Tensor& out) {
  if (!fused) {
    const at::Tensor scale = at::rsqrt(x.square().mean(-1, true) + static_cast<double>(eps));
    at::mul_out(out, x * scale, weight);
    return;
  }
  const int64_t dim = x.size(1);
  ParallelRange(x.size(0), kGrain, [&](int64_t begin, int64_t end) {
    RmsNormRows(x.const_data_ptr<float>() + begin * dim, weight.const_data_ptr<float>(), eps,
                end - begin, dim, out.data_ptr<float>() + begin * dim);
  });
}

at::Tensor LayerScratch::Take(Use use, int64_t rows, int64_t cols, const at::Tensor& like) {
  at::Tensor& memory = memory_[use];
  if (!memory.defined() || memory.numel() < rows * cols) {
    memory = at::Tensor();  // the old one goes before the new one comes
    memory = at::empty({rows * cols}, like.options());
  }
  return memory.narrow(0, 0, rows * cols).view({rows, cols});
}

DecoderLayer::DecoderLayer(const ModelConfig& config, const LayerShape& shape, LayerWeights weights,
                           at::Device device, bool fused)
    : shape_(shape),
      eps_(static_cast<float>(config.rms_eps)),
      fused_(fused && device.is_cpu()),
      token_block_(TokenBlock(config)),
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

int64_t DecoderLayer::TokenBlock(const ModelConfig& config) {
  return std::clamp(kBlockBytes / (8 * config.intermediate), kMinTokenBlock, kMaxTokenBlock);
}

at::Tensor DecoderLayer::Norm(const at::Tensor& x, const at::Tensor& weight,
                              LayerScratch& scratch) const {
  at::Tensor out = scratch.Take(LayerScratch::kNormed, x.size(0), x.size(1), x);
  RmsNorm(x, weight, eps_, fused_, out);
  return out;
}

// Columns of the projection x [rows, H_q D_k + H_kv (D_k + D_v)] -> heads of the tokens from
// `begin` on, by ATen operations.
void DecoderLayer::SplitRows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                             int64_t begin, const Heads& out) const {
  int64_t column = 0;
  const auto split = [&](const at::Tensor& to, const at::Tensor& norm, bool turn) {
    const int64_t width = to.size(1) * to.size(2);
    at::Tensor heads = x.narrow(1, column, width).reshape({x.size(0), to.size(1), to.size(2)});
    column += width;
    if (norm.defined()) {
      at::Tensor normed = at::empty_like(heads);
      RmsNorm(heads, norm, eps_, false, normed);
      heads = normed;
    }
    to.narrow(0, begin, x.size(0)).copy_(turn ? TurnPairs(heads, cos, sin) : heads);
  };
  split(out.q, q_norm_, true);
  split(out.k, k_norm_, true);
  split(out.v, {}, false);
}

void DecoderLayer::SplitRowsFused(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                  int64_t begin, const Heads& out) const {
  const int64_t half = cos.size(1);
  const auto weights = [](const at::Tensor& norm) {
    return norm.defined() ? norm.const_data_ptr<float>() : nullptr;
  };
  ParallelRange(x.size(0), kGrain, [&](int64_t first, int64_t last) {
    const float* from = x.const_data_ptr<float>() + first * x.size(1);
    const auto split = [&](const at::Tensor& to, const float* norm, int64_t rope_dims) {
      const int64_t width = to.size(1) * to.size(2);
      SplitHeadRows(from, x.size(1), cos.const_data_ptr<float>() + first * half,
                    sin.const_data_ptr<float>() + first * half, last - first,
                    {to.size(1), to.size(2), norm, eps_, rope_dims},
                    to.data_ptr<float>() + (begin + first) * width);
      from += width;
    };
    split(out.q, weights(q_norm_), 2 * half);
    split(out.k, weights(k_norm_), 2 * half);
    split(out.v, nullptr, 0);
  });
}

DecoderLayer::Heads DecoderLayer::Project(const at::Tensor& hidden, const RopeTables& rope,
                                          LayerScratch& scratch) const {
  const int64_t tokens = hidden.size(0);
  const auto make = [&](int64_t heads, int64_t dim) {
    return at::empty({tokens, heads, dim}, hidden.options());
  };
  Heads out{make(shape_.q_heads, shape_.k_dim), make(shape_.kv_heads, shape_.k_dim),
            make(shape_.kv_heads, shape_.v_dim)};
  for (int64_t begin = 0; begin < tokens; begin += token_block_) {
    const int64_t rows = std::min(token_block_, tokens - begin);
    at::Tensor x = scratch.Take(LayerScratch::kFirst, rows, qkv_.weight.size(0), hidden);
    Multiply(Norm(hidden.narrow(0, begin, rows), attn_norm_, scratch), qkv_.weight, qkv_.bias, x);
    const at::Tensor cos = rope.cos.narrow(0, begin, rows);
    const at::Tensor sin = rope.sin.narrow(0, begin, rows);
    if (fused_) {
      SplitRowsFused(x, cos, sin, begin, out);
    } else {
      SplitRows(x, cos, sin, begin, out);
    }
  }
  return out;
}

// x += down(silu(gate(norm(x))) * up(norm(x))).
void DecoderLayer::Mlp(const at::Tensor& x, LayerScratch& scratch) const {
  const int64_t rows = x.size(0);
  const int64_t width = gate_.weight.size(0);
  const at::Tensor normed = Norm(x, ffn_norm_, scratch);
  at::Tensor gate = scratch.Take(LayerScratch::kFirst, rows, width, x);
  at::Tensor up = scratch.Take(LayerScratch::kSecond, rows, width, x);
  Multiply(normed, gate_.weight, gate_.bias, gate);
  Multiply(normed, up_.weight, up_.bias, up);
  if (fused_) {
    ParallelRange(gate.numel(), kGrain * width, [&](int64_t begin, int64_t end) {
      SiluTimes(up.const_data_ptr<float>() + begin, end - begin, gate.data_ptr<float>() + begin);
    });
  } else {
    at::silu_(gate).mul_(up);
  }
  x.addmm_(gate, down_.weight.t());
  if (down_.bias.defined()) x.add_(down_.bias);
}

void DecoderLayer::Finish(const at::Tensor& hidden, const at::Tensor& o, const at::Tensor& out,
                          LayerScratch& scratch) const {
  const at::Tensor outputs = o.reshape({o.size(0), -1});
  for (int64_t begin = 0; begin < hidden.size(0); begin += token_block_) {
    const int64_t count = std::min(token_block_, hidden.size(0) - begin);
    at::Tensor rows = out.narrow(0, begin, count);
    at::addmm_out(rows, hidden.narrow(0, begin, count), outputs.narrow(0, begin, count),
                  o_.weight.t());
    if (o_.bias.defined()) rows.add_(o_.bias);
    Mlp(rows, scratch);
  }
}

}  // namespace oscar
