#include "oscar/weights/layout.h"

#include <algorithm>
#include <set>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

// A size that a tensor dimension takes from the configuration.
enum class Dim { kNone, kHidden, kQuery, kKeyValue, kHead, kIntermediate };

enum class Needs { kAlways, kQkvBias, kOBias, kMlpBias, kQkNorm };
enum class Permuted { kNever, kQueryHeads, kKeyHeads };

// Names without the layer's prefix ("model.layers.3." and "blk.3.").
struct Slot {
  const char* hf;
  const char* gguf;
  std::vector<float> LayerWeights::*target;
  Dim rows;
  Dim cols;  // kNone for vectors
  Needs needs = Needs::kAlways;
  Permuted permuted = Permuted::kNever;  // in GGUF files of permuted architectures
};

constexpr Slot kSlots[] = {
    {"input_layernorm.weight", "attn_norm.weight", &LayerWeights::attn_norm, Dim::kHidden,
     Dim::kNone},
    {"post_attention_layernorm.weight", "ffn_norm.weight", &LayerWeights::ffn_norm, Dim::kHidden,
     Dim::kNone},
    {"self_attn.q_proj.weight", "attn_q.weight", &LayerWeights::q, Dim::kQuery, Dim::kHidden,
     Needs::kAlways, Permuted::kQueryHeads},
    {"self_attn.k_proj.weight", "attn_k.weight", &LayerWeights::k, Dim::kKeyValue, Dim::kHidden,
     Needs::kAlways, Permuted::kKeyHeads},
    {"self_attn.v_proj.weight", "attn_v.weight", &LayerWeights::v, Dim::kKeyValue, Dim::kHidden},
    {"self_attn.o_proj.weight", "attn_output.weight", &LayerWeights::o, Dim::kHidden, Dim::kQuery},
    {"self_attn.q_proj.bias", "attn_q.bias", &LayerWeights::q_bias, Dim::kQuery, Dim::kNone,
     Needs::kQkvBias, Permuted::kQueryHeads},
    {"self_attn.k_proj.bias", "attn_k.bias", &LayerWeights::k_bias, Dim::kKeyValue, Dim::kNone,
     Needs::kQkvBias, Permuted::kKeyHeads},
    {"self_attn.v_proj.bias", "attn_v.bias", &LayerWeights::v_bias, Dim::kKeyValue, Dim::kNone,
     Needs::kQkvBias},
    {"self_attn.o_proj.bias", "attn_output.bias", &LayerWeights::o_bias, Dim::kHidden, Dim::kNone,
     Needs::kOBias},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", &LayerWeights::q_norm, Dim::kHead, Dim::kNone,
     Needs::kQkNorm},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", &LayerWeights::k_norm, Dim::kHead, Dim::kNone,
     Needs::kQkNorm},
    {"mlp.gate_proj.weight", "ffn_gate.weight", &LayerWeights::gate, Dim::kIntermediate,
     Dim::kHidden},
    {"mlp.up_proj.weight", "ffn_up.weight", &LayerWeights::up, Dim::kIntermediate, Dim::kHidden},
    {"mlp.down_proj.weight", "ffn_down.weight", &LayerWeights::down, Dim::kHidden,
     Dim::kIntermediate},
    {"mlp.gate_proj.bias", "ffn_gate.bias", &LayerWeights::gate_bias, Dim::kIntermediate,
     Dim::kNone, Needs::kMlpBias},
    {"mlp.up_proj.bias", "ffn_up.bias", &LayerWeights::up_bias, Dim::kIntermediate, Dim::kNone,
     Needs::kMlpBias},
    {"mlp.down_proj.bias", "ffn_down.bias", &LayerWeights::down_bias, Dim::kHidden, Dim::kNone,
     Needs::kMlpBias},
};

int64_t SizeOf(Dim dim, const ModelConfig& config) {
  switch (dim) {
    case Dim::kHidden:
      return config.hidden;
    case Dim::kQuery:
      return config.q_heads * config.head_dim;
    case Dim::kKeyValue:
      return config.kv_heads * config.head_dim;
    case Dim::kHead:
      return config.head_dim;
    case Dim::kIntermediate:
      return config.intermediate;
    case Dim::kNone:
      break;
  }
  OSCAR_CHECK(false);
  return 0;
}

bool Present(Needs needs, const ModelConfig& config) {
  switch (needs) {
    case Needs::kAlways:
      return true;
    case Needs::kQkvBias:
      return config.qkv_bias;
    case Needs::kOBias:
      return config.o_bias;
    case Needs::kMlpBias:
      return config.mlp_bias;
    case Needs::kQkNorm:
      return config.qk_norm;
  }
  return false;
}

// Tensors that hold nothing the configuration does not say.
bool Redundant(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name == "rope_freqs.weight";
}

}  // namespace

Layout::Layout(const Architecture& architecture, const ModelConfig& config, NameScheme scheme,
               std::string prefix)
    : config_(config),
      permuted_(scheme == NameScheme::kGguf && architecture.gguf_permuted),
      scheme_(scheme),
      prefix_(std::move(prefix)) {
  if (scheme == NameScheme::kGguf) {
    outer_ = {"token_embd.weight", "output_norm.weight", "output.weight"};
  } else {
    outer_ = {prefix_ + "embed_tokens.weight", prefix_ + "norm.weight", "lm_head.weight"};
  }
  if (config.tied_embeddings) outer_.head = outer_.embedding;
}

std::vector<LayerTensor> Layout::Layer(int64_t layer) const {
  const bool gguf = scheme_ == NameScheme::kGguf;
  const std::string prefix =
      gguf ? Message("blk.", layer, ".") : Message(prefix_, "layers.", layer, ".");
  std::vector<LayerTensor> out;
  for (const Slot& slot : kSlots) {
    if (!Present(slot.needs, config_)) continue;
    LayerTensor tensor;
    tensor.name = prefix + (gguf ? slot.gguf : slot.hf);
    tensor.shape.push_back(SizeOf(slot.rows, config_));
    if (slot.cols != Dim::kNone) tensor.shape.push_back(SizeOf(slot.cols, config_));
    tensor.target = slot.target;
    if (permuted_ && slot.permuted != Permuted::kNever) {
      tensor.permuted_heads =
          slot.permuted == Permuted::kQueryHeads ? config_.q_heads : config_.kv_heads;
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

void Layout::CheckOne(const TensorSet& tensors, const std::string& source, const std::string& name,
                      const std::vector<int64_t>& shape) const {
  const StoredTensor* tensor = tensors.Find(name);
  if (tensor == nullptr) {
    throw Error(ErrorCode::kFormat, Message(source, ": tensor ", Quoted(name), " of shape ",
                                            ShapeText(shape), " is missing"));
  }
  const std::string file = tensors.FileOf(*tensor).string();
  if (!tensor->supported) {
    throw Error(ErrorCode::kUnsupported,
                Message(file, ": tensor ", Quoted(name), " has type ", Quoted(tensor->type_name),
                        ", which is not supported"));
  }
  if (tensor->shape != shape) {
    throw Error(ErrorCode::kFormat,
                Message(file, ": tensor ", Quoted(name), ": expected shape ", ShapeText(shape),
                        ", found ", ShapeText(tensor->shape)));
  }
}

void Layout::Check(const TensorSet& tensors, const std::string& source) const {
  std::set<std::string> known;
  const auto check = [&](const std::string& name, const std::vector<int64_t>& shape) {
    CheckOne(tensors, source, name, shape);
    known.insert(name);
  };
  check(outer_.embedding, {config_.vocab, config_.hidden});
  check(outer_.final_norm, {config_.hidden});
  check(outer_.head, {config_.vocab, config_.hidden});
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const LayerTensor& tensor : Layer(layer)) check(tensor.name, tensor.shape);
  }
  if (scheme_ == NameScheme::kHuggingFace) known.insert("lm_head.weight");  // may be a tied copy
  for (const auto& [name, tensor] : tensors.tensors()) {
    if (known.contains(name) || Redundant(name)) continue;
    throw Error(ErrorCode::kUnsupported,
                Message(tensors.FileOf(tensor).string(), ": tensor ", Quoted(name),
                        " is no part of a ", config_.architecture, " model of this configuration"));
  }
}

}  // namespace oscar
