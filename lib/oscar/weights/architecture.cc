#include "oscar/weights/architecture.h"

namespace oscar {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .class_stem = "Llama",
     .gguf_name = "llama",
     .qkv_bias = false,
     .attention_bias_field = true,
     .mlp_bias_field = true,
     .qk_norm = false,
     .window = WindowRule::kNone,
     .gguf_permuted = true,
     .default_head_dim = 0,
     .default_max_positions = 2048,
     .default_sliding_window = 0},
    {.name = "mistral",
     .class_stem = "Mistral",
     .gguf_name = "",  // written as llama
     .qkv_bias = false,
     .attention_bias_field = false,
     .mlp_bias_field = false,
     .qk_norm = false,
     .window = WindowRule::kAll,
     .gguf_permuted = true,
     .default_head_dim = 0,
     .default_max_positions = 131072,
     .default_sliding_window = 4096},
    {.name = "qwen2",
     .class_stem = "Qwen2",
     .gguf_name = "qwen2",
     .qkv_bias = true,
     .attention_bias_field = false,
     .mlp_bias_field = false,
     .qk_norm = false,
     .window = WindowRule::kSwitch,
     .gguf_permuted = false,
     .default_head_dim = 0,
     .default_max_positions = 32768,
     .default_sliding_window = 4096},
    {.name = "qwen3",
     .class_stem = "Qwen3",
     .gguf_name = "qwen3",
     .qkv_bias = false,
     .attention_bias_field = true,
     .mlp_bias_field = false,
     .qk_norm = true,
     .window = WindowRule::kSwitch,
     .gguf_permuted = false,
     .default_head_dim = 128,
     .default_max_positions = 32768,
     .default_sliding_window = 4096},
};

}  // namespace

const Architecture* FindArchitecture(std::string_view model_type) {
  for (const Architecture& row : kArchitectures) {
    if (row.name == model_type) return &row;
  }
  return nullptr;
}

const Architecture* FindGgufArchitecture(std::string_view name) {
  for (const Architecture& row : kArchitectures) {
    if (!row.gguf_name.empty() && row.gguf_name == name) return &row;
  }
  return nullptr;
}

std::string ArchitectureNames() {
  std::string out;
  for (const Architecture& row : kArchitectures) {
    out += (out.empty() ? "" : ", ") + std::string(row.name);
  }
  return out;
}

}  // namespace oscar
