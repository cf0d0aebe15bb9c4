// The supported architectures: one row of properties each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// Which layers of an architecture honour the config's sliding window.
enum class WindowRule {
  kNone,    // the field is refused unless null
  kAll,     // every layer, when sliding_window is not null
  kSwitch,  // with use_sliding_window: layer_types, or the layers from max_window_layers on
};

struct Architecture {
  std::string_view name;        // model_type of config.json, and ModelConfig::architecture
  std::string_view class_stem;  // of the transformers classes: LlamaForCausalLM
  std::string_view gguf_name;   // general.architecture
  bool qkv_bias;                // always there
  bool attention_bias_field;    // the config may turn on biases of q, k, v and o
  bool mlp_bias_field;          // the config may turn on biases of gate, up and down
  bool qk_norm;
  WindowRule window;
  bool gguf_permuted;  // GGUF stores the rows of q and k for interleaved RoPE
  // Values that transformers assumes for absent fields.
  int64_t default_head_dim;  // 0: hidden_size / num_attention_heads
  int64_t default_max_positions;
  int64_t default_sliding_window;  // 0: none
};

// Rows by model_type and by general.architecture; nullptr when there is none. Mistral files say
// "llama" in GGUF.
const Architecture* FindArchitecture(std::string_view model_type);
const Architecture* FindGgufArchitecture(std::string_view name);
// "llama, mistral, qwen2, qwen3"
std::string ArchitectureNames();

}  // namespace oscar
