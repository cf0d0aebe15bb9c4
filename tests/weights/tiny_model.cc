#include "weights/tiny_model.h"

#include <stdexcept>

#include "oscar/core/dtype.h"
#include "oscar/core/random.h"

namespace oscar::test {
namespace {

using nlohmann::json;

// Hugging Face name below "model.layers.N." -> GGUF name below "blk.N.".
const std::map<std::string, std::string>& GgufNames() {
  static const std::map<std::string, std::string> names = {
      {"input_layernorm.weight", "attn_norm.weight"},
      {"post_attention_layernorm.weight", "ffn_norm.weight"},
      {"self_attn.q_proj.weight", "attn_q.weight"},
      {"self_attn.k_proj.weight", "attn_k.weight"},
      {"self_attn.v_proj.weight", "attn_v.weight"},
      {"self_attn.o_proj.weight", "attn_output.weight"},
      {"self_attn.q_proj.bias", "attn_q.bias"},
      {"self_attn.k_proj.bias", "attn_k.bias"},
      {"self_attn.v_proj.bias", "attn_v.bias"},
      {"self_attn.o_proj.bias", "attn_output.bias"},
      {"self_attn.q_norm.weight", "attn_q_norm.weight"},
      {"self_attn.k_norm.weight", "attn_k_norm.weight"},
      {"mlp.gate_proj.weight", "ffn_gate.weight"},
      {"mlp.up_proj.weight", "ffn_up.weight"},
      {"mlp.down_proj.weight", "ffn_down.weight"},
      {"mlp.gate_proj.bias", "ffn_gate.bias"},
      {"mlp.up_proj.bias", "ffn_up.bias"},
      {"mlp.down_proj.bias", "ffn_down.bias"}};
  return names;
}

std::string GgufName(const std::string& name) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == "model.norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  const std::string rest = name.substr(std::string("model.layers.").size());
  const size_t dot = rest.find('.');
  return "blk." + rest.substr(0, dot) + "." + GgufNames().at(rest.substr(dot + 1));
}

// Stored row h*D + 2i + s is row h*D + s*D/2 + i.
Bytes Interleave(const FileTensor& tensor, int64_t dim) {
  const int64_t rows = tensor.shape[0];
  const size_t row_bytes = tensor.data.size() / static_cast<size_t>(rows);
  Bytes out(tensor.data.size());
  for (int64_t h = 0; h < rows / dim; ++h) {
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < dim / 2; ++i) {
        const auto to = static_cast<size_t>(h * dim + 2 * i + s);
        const auto from = static_cast<size_t>(h * dim + s * (dim / 2) + i);
        std::memcpy(out.data() + to * row_bytes, tensor.data.data() + from * row_bytes, row_bytes);
      }
    }
  }
  return out;
}

bool IsQueryOrKey(const std::string& name) {
  return name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos;
}

}  // namespace

std::vector<TinySpec> TinySpecs() {
  std::vector<TinySpec> out(6);
  out[1].qkv_bias = out[1].o_bias = out[1].mlp_bias = true;  // llama with every bias
  out[2].type = "mistral";
  out[3].type = "qwen2";
  out[3].qkv_bias = out[3].tied = true;
  out[4].type = "qwen3";
  out[4].qk_norm = true;
  out[5].type = "qwen3";
  out[5].qk_norm = out[5].qkv_bias = out[5].o_bias = out[5].tied = true;
  return out;
}

json TinyConfig(const TinySpec& spec) {
  json config = {{"model_type", spec.type},
                 {"num_hidden_layers", spec.layers},
                 {"hidden_size", spec.hidden},
                 {"intermediate_size", spec.intermediate},
                 {"vocab_size", spec.vocab},
                 {"num_attention_heads", spec.q_heads},
                 {"num_key_value_heads", spec.kv_heads},
                 {"head_dim", spec.head_dim},
                 {"max_position_embeddings", 4096},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 50000.0},
                 {"tie_word_embeddings", spec.tied},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  if (spec.type == "llama" || spec.type == "qwen3") config["attention_bias"] = spec.o_bias;
  if (spec.type == "llama") config["mlp_bias"] = spec.mlp_bias;
  if (spec.type == "mistral") config["sliding_window"] = nullptr;
  return config;
}

std::vector<FileTensor> TinyTensors(const TinySpec& spec) {
  std::vector<FileTensor> out;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    Random random(DeriveSeed(7, name));
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random.Normal());
    out.push_back(F32Tensor(name, shape, values));
  };
  const int64_t q = spec.q_heads * spec.head_dim;
  const int64_t kv = spec.kv_heads * spec.head_dim;
  add("model.embed_tokens.weight", {spec.vocab, spec.hidden});
  add("model.norm.weight", {spec.hidden});
  if (!spec.tied) add("lm_head.weight", {spec.vocab, spec.hidden});
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    add(at + "input_layernorm.weight", {spec.hidden});
    add(at + "post_attention_layernorm.weight", {spec.hidden});
    add(at + "self_attn.q_proj.weight", {q, spec.hidden});
    add(at + "self_attn.k_proj.weight", {kv, spec.hidden});
    add(at + "self_attn.v_proj.weight", {kv, spec.hidden});
    add(at + "self_attn.o_proj.weight", {spec.hidden, q});
    add(at + "mlp.gate_proj.weight", {spec.intermediate, spec.hidden});
    add(at + "mlp.up_proj.weight", {spec.intermediate, spec.hidden});
    add(at + "mlp.down_proj.weight", {spec.hidden, spec.intermediate});
    if (spec.qkv_bias) {
      add(at + "self_attn.q_proj.bias", {q});
      add(at + "self_attn.k_proj.bias", {kv});
      add(at + "self_attn.v_proj.bias", {kv});
    }
    if (spec.o_bias) add(at + "self_attn.o_proj.bias", {spec.hidden});
    if (spec.qk_norm) {
      add(at + "self_attn.q_norm.weight", {spec.head_dim});
      add(at + "self_attn.k_norm.weight", {spec.head_dim});
    }
    if (spec.mlp_bias) {
      add(at + "mlp.gate_proj.bias", {spec.intermediate});
      add(at + "mlp.up_proj.bias", {spec.intermediate});
      add(at + "mlp.down_proj.bias", {spec.hidden});
    }
  }
  return out;
}

std::vector<FileTensor> Rounded(const std::vector<FileTensor>& tensors, const std::string& dtype) {
  std::vector<FileTensor> out = tensors;
  for (FileTensor& tensor : out) {
    const std::vector<float> values = Floats(tensor);
    tensor.dtype = dtype;
    tensor.ggml_type = dtype == "F16" ? 1 : 30;
    tensor.data.clear();
    for (const float value : values) {
      const uint16_t bits = dtype == "F16" ? ToFloat16(value).bits : ToBFloat16(value).bits;
      tensor.data.push_back(static_cast<uint8_t>(bits));
      tensor.data.push_back(static_cast<uint8_t>(bits >> 8));
    }
  }
  return out;
}

GgufBuilder TinyGguf(const TinySpec& spec, const std::vector<FileTensor>& tensors) {
  const std::string arch = spec.type == "mistral" ? "llama" : spec.type;
  GgufBuilder out;
  const auto u32 = [&](const std::string& key, int64_t value) {
    out.U32(arch + "." + key, static_cast<uint32_t>(value));
  };
  out.Text("general.architecture", arch);
  out.Text("general.name", "Tiny " + spec.type);
  u32("block_count", spec.layers);
  u32("context_length", 4096);
  u32("embedding_length", spec.hidden);
  u32("feed_forward_length", spec.intermediate);
  u32("attention.head_count", spec.q_heads);
  u32("attention.head_count_kv", spec.kv_heads);
  u32("attention.key_length", spec.head_dim);
  u32("attention.value_length", spec.head_dim);
  u32("rope.dimension_count", spec.head_dim);
  out.F32(arch + ".rope.freq_base", 50000);
  out.F32(arch + ".attention.layer_norm_rms_epsilon", 1e-5F);
  out.U32("tokenizer.ggml.bos_token_id", 1);
  out.U32("tokenizer.ggml.eos_token_id", 2);
  for (FileTensor tensor : tensors) {
    if (arch == "llama" && IsQueryOrKey(tensor.name)) {
      tensor.data = Interleave(tensor, spec.head_dim);
    }
    tensor.name = GgufName(tensor.name);
    out.Tensor(tensor);
  }
  return out;
}

void WriteTinyFolder(const std::filesystem::path& folder, const json& config,
                     const std::vector<FileTensor>& tensors) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(1);
  WriteSafetensors(folder / "model.safetensors", tensors);
}

std::vector<float> Floats(const FileTensor& tensor) {
  std::vector<float> out(tensor.data.size() / 4);
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

const FileTensor& Named(const std::vector<FileTensor>& tensors, const std::string& name) {
  for (const FileTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::out_of_range(name);
}

}  // namespace oscar::test
