#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/weights/config.h"
#include "oscar/weights/config_reader.h"
#include "oscar/weights/message.h"
#include "oscar/weights/rope.h"

namespace oscar {
namespace {

constexpr char kUnknownHint[] = "the file needs a computation that this version does not have";

// Keys below the architecture that do not change an inference run. The layout key says "Meta AI
// original pth" for files whose q and k come interleaved from the start: what llama files hold.
constexpr std::string_view kHarmless[] = {"tensor_data_layout", "rope.scaling.finetuned",
                                          "attention.causal",   "embedding_length_out",
                                          "pooling_type",       "expert_used_count"};

// An integer, or a list of equal integers (one per layer).
int64_t UniformSize(ConfigReader& reader, const std::string& field, int64_t largest) {
  const Value* value = reader.Find(field);
  if (value == nullptr || !value->is_array()) return reader.Size(field, largest);
  const Value::Array& items = value->AsArray();
  if (items.empty() || !items[0].is_int() || items[0].AsInt() < 1 || items[0].AsInt() > largest) {
    reader.Wrong(field, Message("integers from 1 to ", largest));
  }
  for (const Value& item : items) {
    if (item != items[0]) reader.Unsupported(field, "layers of different sizes are not supported");
  }
  return items[0].AsInt();
}

const Architecture& ReadArchitecture(const Value& metadata, const std::string& source) {
  ConfigReader general(metadata, source, "general.");
  const std::string name = general.Text("architecture").value_or("");
  const Architecture* row = FindGgufArchitecture(name);
  if (row != nullptr) return *row;
  throw Error(
      ErrorCode::kUnsupported,
      Message(source, ": architecture ", Quoted(name), " (general.architecture) is not supported"),
      "supported: " + ArchitectureNames() + " (mistral files say llama)");
}

// The vocabulary is what the embedding holds; metadata must agree.
int64_t ReadVocab(ConfigReader& reader, const TensorSet& tensors) {
  const StoredTensor* embedding = tensors.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw Error(ErrorCode::kFormat,
                reader.source() + ": tensor 'token_embd.weight' is missing or no matrix");
  }
  const int64_t rows = embedding->shape[0];
  if (rows < 1 || rows > kLargestVocab) {
    throw Error(ErrorCode::kFormat,
                Message(reader.source(), ": tensor 'token_embd.weight' has ", rows, " rows"));
  }
  if (reader.SizeOr("vocab_size", rows, kLargestVocab) != rows) {
    reader.Wrong("vocab_size", Message(rows, ", the rows of 'token_embd.weight'"));
  }
  return rows;
}

void ReadSizes(ConfigReader& reader, const TensorSet& tensors, ModelConfig& config) {
  config.layers = reader.Size("block_count", kLargestLayers);
  config.hidden = reader.Size("embedding_length", kLargestDim);
  config.intermediate = UniformSize(reader, "feed_forward_length", kLargestDim);
  config.vocab = ReadVocab(reader, tensors);
  config.q_heads = UniformSize(reader, "attention.head_count", kLargestDim);
  config.kv_heads = reader.Find("attention.head_count_kv") == nullptr
                        ? config.q_heads
                        : UniformSize(reader, "attention.head_count_kv", kLargestDim);
  config.max_positions = reader.SizeOr("context_length", 2048, kLargestPositions);
  if (reader.Find("attention.key_length") != nullptr) {
    config.head_dim = reader.Size("attention.key_length", kLargestDim);
  } else if (config.hidden % config.q_heads == 0) {
    config.head_dim = config.hidden / config.q_heads;  // what a missing key means
  } else {
    throw Error(ErrorCode::kFormat,
                Message(reader.source(), ": there is no attention.key_length, and ", config.hidden,
                        " is no multiple of ", config.q_heads, " heads"));
  }
  const auto same_as_head = [&](const std::string& field, const char* why) {
    if (reader.SizeOr(field, config.head_dim, kLargestDim) != config.head_dim) {
      reader.Unsupported(field, Message("heads have ", config.head_dim, " dims; ", why));
    }
  };
  same_as_head("attention.value_length", "other value dims are not supported");
  same_as_head("rope.dimension_count", "partial rotary embedding is not supported");
}

void CheckFixedKeys(ConfigReader& reader) {
  if (reader.Int("expert_count").value_or(0) > 0) {
    reader.Unsupported("expert_count", "mixtures of experts are not supported");
  }
  if (!reader.Bool("attention.causal").value_or(true)) {
    reader.Unsupported("attention.causal", "only causal attention is supported");
  }
  for (const char* field : {"embedding_scale", "residual_scale", "logit_scale"}) {
    if (reader.Number(field).value_or(1) != 1) reader.Unsupported(field, "scaling is unsupported");
  }
}

// Scaling keys; older files have rope.scale_linear only.
void ReadScaling(ConfigReader& reader, const ModelConfig& config, RopeParameters& p) {
  const auto linear = reader.Number("rope.scale_linear");
  std::string type = reader.Text("rope.scaling.type").value_or(linear ? "linear" : "none");
  const double factor = reader.PositiveOr("rope.scaling.factor", linear.value_or(1));
  const auto positions = static_cast<double>(config.max_positions);
  const double original = reader.PositiveOr("rope.scaling.original_context_length", positions);
  const double magnitude = reader.PositiveOr("rope.scaling.attn_factor", 1);
  p.beta_fast = reader.PositiveOr("rope.scaling.yarn_beta_fast", 32);
  p.beta_slow = reader.PositiveOr("rope.scaling.yarn_beta_slow", 1);
  if (reader.Number("rope.scaling.yarn_ext_factor").value_or(1) != 1) {
    reader.Unsupported("rope.scaling.yarn_ext_factor", "only 1 is supported");
  }
  if (reader.Number("rope.scaling.yarn_attn_factor").value_or(1) != 1) {
    reader.Unsupported("rope.scaling.yarn_attn_factor", "only 1 is supported");
  }
  if (type == "none") return;
  if (type != "linear" && type != "yarn") {
    reader.Unsupported("rope.scaling.type", "supported are none, linear and yarn");
  }
  if (type == "linear" && magnitude != 1) {
    reader.Unsupported("rope.scaling.attn_factor", "it needs yarn scaling");
  }
  p.type = type;
  p.factor = factor;
  p.original_positions = original;
  // The key multiplies what yarn derives from the factor.
  p.attention_factor = magnitude * (factor <= 1 ? 1 : 0.1 * std::log(factor) + 1);
}

// Divisors of the frequencies (how GGUF stores llama3 scaling).
std::vector<float> ReadDivisors(const TensorSet& tensors, int64_t pairs,
                                const std::string& source) {
  const std::string name = "rope_freqs.weight";
  const StoredTensor* tensor = tensors.Find(name);
  if (tensor == nullptr) return {};
  if (!tensor->supported || tensor->type != TensorType::kF32 ||
      tensor->shape != std::vector<int64_t>{pairs}) {
    throw Error(ErrorCode::kFormat,
                Message(source, ": tensor ", Quoted(name), ": expected F32 of shape [", pairs,
                        "], found ", tensor->type_name, " of shape ", ShapeText(tensor->shape)));
  }
  std::vector<float> out(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i)
    tensors.ReadRows(name, *tensor, i, i + 1, &out[static_cast<size_t>(i)]);
  for (const float divisor : out) {
    if (!(divisor > 0)) {
      throw Error(ErrorCode::kFormat,
                  Message(source, ": tensor ", Quoted(name), " holds the divisor ", divisor));
    }
  }
  return out;
}

int64_t ReadToken(ConfigReader& reader, const std::string& field) {
  return reader.Int(field).value_or(-1);
}

}  // namespace

ParsedConfig ParseGgufConfig(const Value& metadata, const TensorSet& tensors,
                             const std::string& source) {
  ParsedConfig out;
  const Architecture& row = ReadArchitecture(metadata, source);
  out.architecture = &row;
  ModelConfig& config = out.config;
  config.architecture = std::string(row.name);
  ConfigReader reader(metadata, source, std::string(row.gguf_name) + ".");
  ReadSizes(reader, tensors, config);
  CheckFixedKeys(reader);
  config.rms_eps = reader.PositiveOr("attention.layer_norm_rms_epsilon", 1e-6);
  config.sliding_window = reader.SizeOr("attention.sliding_window", 0, kLargestPositions);
  if (config.sliding_window > 0 && row.window == WindowRule::kSwitch) {
    reader.Unsupported("attention.sliding_window", "the file does not say which layers use it");
  }
  config.layer_uses_window.assign(static_cast<size_t>(config.layers), config.sliding_window > 0);
  CheckConfig(config, source);

  // Biases are announced by their tensors only.
  const auto has = [&](const char* name) { return tensors.Find(name) != nullptr; };
  config.qkv_bias = row.qkv_bias || has("blk.0.attn_q.bias");
  config.o_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_gate.bias");
  config.qk_norm = row.qk_norm;
  config.tied_embeddings = !has("output.weight");

  RopeParameters rope;
  rope.theta = reader.PositiveOr("rope.freq_base", 10000);
  if (rope.theta <= 1) reader.Wrong("rope.freq_base", "a number above one");
  ReadScaling(reader, config, rope);
  rope.divisors = ReadDivisors(tensors, config.head_dim / 2, source);
  config.rope = ComputeRope(rope, config.head_dim);
  reader.RefuseUnknown(kHarmless, kUnknownHint);

  ConfigReader tokenizer(metadata, source, "tokenizer.ggml.");
  config.bos_token = ReadToken(tokenizer, "bos_token_id");
  config.eos_token = ReadToken(tokenizer, "eos_token_id");
  return out;
}

}  // namespace oscar
