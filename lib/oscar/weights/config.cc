#include "oscar/weights/config.h"

#include <cmath>
#include <cstdio>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/weights/message.h"

namespace oscar {

LayerShape ModelConfig::ShapeOfLayer(int64_t layer) const {
  OSCAR_CHECK(layer >= 0 && layer < layers);
  LayerShape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.k_dim = head_dim;
  shape.v_dim = head_dim;
  shape.hidden = hidden;
  shape.softmax_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  shape.window = layer_uses_window[static_cast<size_t>(layer)] ? sliding_window : 0;
  shape.rope = "full";
  return shape;
}

void CheckConfig(const ModelConfig& config, const std::string& source) {
  if (config.q_heads % config.kv_heads != 0) {
    throw Error(ErrorCode::kFormat,
                Message(source, ": ", config.q_heads, " query heads cannot share ", config.kv_heads,
                        " key-value heads"));
  }
  if (config.head_dim % 2 != 0) {
    throw Error(ErrorCode::kUnsupported, Message(source, ": head_dim ", config.head_dim,
                                                 " is odd, rotary embedding needs pairs"));
  }
  if (config.q_heads * config.head_dim > kLargestDim) {
    throw Error(ErrorCode::kFormat, Message(source, ": ", config.q_heads, " heads of ",
                                            config.head_dim, " are more than any model has"));
  }
}

std::string HashConfig(const ModelConfig& config) {
  Value out;
  out["layers"] = config.layers;
  out["hidden"] = config.hidden;
  out["intermediate"] = config.intermediate;
  out["vocab"] = config.vocab;
  out["q_heads"] = config.q_heads;
  out["kv_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  // GGUF keeps float32.
  out["rms_eps"] = static_cast<double>(static_cast<float>(config.rms_eps));
  out["qkv_bias"] = config.qkv_bias;
  out["o_bias"] = config.o_bias;
  out["mlp_bias"] = config.mlp_bias;
  out["qk_norm"] = config.qk_norm;
  out["activation"] = config.activation;
  Value::Array windows;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    windows.emplace_back(config.ShapeOfLayer(layer).window);
  }
  out["windows"] = std::move(windows);
  const auto rounded = [](double x) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.4e", x);
    return Value(std::string(text));
  };
  Value::Array frequencies;
  for (const double f : config.rope.inv_freq) frequencies.push_back(rounded(f));
  out["inv_freq"] = std::move(frequencies);
  out["attention_factor"] = rounded(config.rope.attention_factor);
  return Sha256Hex(out.ToJson());
}

}  // namespace oscar
