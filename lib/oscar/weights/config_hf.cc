#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/weights/config.h"
#include "oscar/weights/config_reader.h"
#include "oscar/weights/message.h"
#include "oscar/weights/rope.h"

namespace oscar {
namespace {

constexpr char kUnknownHint[] =
    "if the field does not change what the model computes, remove it from the file";

// Fields that do not change the output of an inference run: bookkeeping, training, generation.
constexpr std::string_view kHarmless[] = {"architectures",
                                          "model_type",
                                          "torch_dtype",
                                          "dtype",
                                          "transformers_version",
                                          "name_or_path",
                                          "initializer_range",
                                          "use_cache",
                                          "attention_dropout",
                                          "hidden_dropout",
                                          "embd_pdrop",
                                          "resid_pdrop",
                                          "attn_pdrop",
                                          "pretraining_tp",
                                          "is_llama_config",
                                          "transformers.js_config",
                                          "tokenizer_class",
                                          "model_max_length",
                                          "unsloth_version",
                                          "unsloth_fixed",
                                          "use_flash_attn",
                                          "use_flash_attention_2",
                                          "attn_implementation",
                                          "gradient_checkpointing",
                                          "license",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "return_dict",
                                          "return_dict_in_generate",
                                          "output_scores",
                                          "torchscript",
                                          "use_bfloat16",
                                          "tf_legacy_loss",
                                          "num_labels",
                                          "id2label",
                                          "label2id",
                                          "problem_type",
                                          "finetuning_task",
                                          "task_specific_params",
                                          "prefix",
                                          "chunk_size_feed_forward",
                                          "tie_encoder_decoder",
                                          "is_decoder",
                                          "decoder_start_token_id",
                                          "pad_token_id",
                                          "unk_token_id",
                                          "sep_token_id",
                                          "cls_token_id",
                                          "mask_token_id",
                                          "max_length",
                                          "min_length",
                                          "do_sample",
                                          "early_stopping",
                                          "num_beams",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "length_penalty",
                                          "no_repeat_ngram_size",
                                          "encoder_no_repeat_ngram_size",
                                          "bad_words_ids",
                                          "num_return_sequences",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "remove_invalid_values",
                                          "exponential_decay_length_penalty",
                                          "suppress_tokens",
                                          "begin_suppress_tokens",
                                          "max_window_layers",
                                          "bos_token",
                                          "eos_token",
                                          "pad_token"};

// Fields whose other values would change the mathematics. `expected` is JSON.
struct FixedField {
  const char* name;
  const char* expected;
  const char* otherwise;
};
constexpr FixedField kFixed[] = {
    {"is_encoder_decoder", "false", "encoder-decoder models are not supported"},
    {"add_cross_attention", "false", "cross attention is not supported"},
    {"pruned_heads", "{}", "pruned heads are not supported"},
    {"rope_interleaved", "false", "interleaved rotary embedding is not supported"},
    {"partial_rotary_factor", "1", "partial rotary embedding is not supported"},
    {"use_mrope", "false", "multimodal rotary embedding is not supported"},
    {"embedding_multiplier", "1", "scaled embeddings are not supported"},
    {"residual_multiplier", "1", "scaled residuals are not supported"},
    {"logits_scaling", "1", "scaled logits are not supported"},
};

bool SameValue(const Value& a, const Value& b) {
  return a.is_number() && b.is_number() ? a.AsDouble() == b.AsDouble() : a == b;
}

void CheckFixedFields(ConfigReader& reader) {
  for (const FixedField& field : kFixed) {
    const Value* value = reader.Find(field.name);
    if (value == nullptr) continue;
    const Value expected = Value::FromJson(field.expected, "table");
    if (!SameValue(*value, expected)) reader.Unsupported(field.name, field.otherwise);
  }
  if (const Value* map = reader.Find("auto_map"); map != nullptr && map->is_object()) {
    for (const auto& [key, unused] : map->AsObject()) {
      if (key.starts_with("AutoModel")) {
        reader.Unsupported("auto_map", "models with code of their own are not supported");
      }
    }
  }
  if (reader.Find("quantization_config") != nullptr) {
    reader.Unsupported("quantization_config",
                       "quantised safetensors are not supported; use the original weights or GGUF");
  }
}

const Architecture& ReadArchitecture(ConfigReader& reader) {
  const std::string type = reader.Text("model_type").value_or("");
  const Architecture* row = FindArchitecture(type);
  if (row == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        Message(reader.source(), ": architecture ", Quoted(type), " (model_type) is not supported"),
        "supported: " + ArchitectureNames());
  }
  const Value* classes = reader.Find("architectures");
  if (classes == nullptr || !classes->is_array()) return *row;
  const std::string stem(row->class_stem);
  for (const Value& name : classes->AsArray()) {
    if (name == Value(stem + "ForCausalLM") || name == Value(stem + "Model")) continue;
    reader.Unsupported("architectures", Message("expected ", stem, "ForCausalLM"));
  }
  return *row;
}

void ReadSizes(ConfigReader& reader, const Architecture& row, ModelConfig& config) {
  config.layers = reader.Size("num_hidden_layers", kLargestLayers);
  config.hidden = reader.Size("hidden_size", kLargestDim);
  config.intermediate = reader.Size("intermediate_size", kLargestDim);
  config.vocab = reader.Size("vocab_size", kLargestVocab);
  config.q_heads = reader.Size("num_attention_heads", kLargestDim);
  config.kv_heads = reader.SizeOr("num_key_value_heads", config.q_heads, kLargestDim);
  config.max_positions =
      reader.SizeOr("max_position_embeddings", row.default_max_positions, kLargestPositions);
  if (reader.Find("head_dim") != nullptr) {
    config.head_dim = reader.Size("head_dim", kLargestDim);
  } else if (row.default_head_dim > 0) {
    config.head_dim = row.default_head_dim;
  } else if (config.hidden % config.q_heads == 0) {
    config.head_dim = config.hidden / config.q_heads;  // what a missing head_dim means
  } else {
    throw Error(ErrorCode::kFormat,
                Message(reader.source(), ": there is no head_dim, and hidden_size ", config.hidden,
                        " is no multiple of ", config.q_heads, " heads"));
  }
}

void ReadSwitches(ConfigReader& reader, const Architecture& row, ModelConfig& config) {
  config.rms_eps = reader.PositiveOr("rms_norm_eps", 1e-6);
  config.tied_embeddings = reader.Bool("tie_word_embeddings").value_or(false);
  const bool attention_bias = reader.Bool("attention_bias").value_or(row.qkv_bias);
  if (attention_bias != row.qkv_bias && !row.attention_bias_field) {
    reader.Unsupported("attention_bias", "this architecture has no such switch");
  }
  config.qkv_bias = attention_bias;
  config.o_bias = attention_bias && row.attention_bias_field;
  config.mlp_bias = reader.Bool("mlp_bias").value_or(false);
  if (config.mlp_bias && !row.mlp_bias_field) {
    reader.Unsupported("mlp_bias", "this architecture has no such switch");
  }
  config.qk_norm = row.qk_norm;
  config.activation = reader.Text("hidden_act").value_or("silu");
  if (config.activation == "swish") config.activation = "silu";
  if (config.activation != "silu") {
    reader.Unsupported("hidden_act", "only silu is supported");
  }
}

// One entry per layer: true for "sliding_attention", false for "full_attention".
std::vector<bool> ReadLayerTypes(ConfigReader& reader, const Value& list, int64_t layers) {
  if (!list.is_array() || static_cast<int64_t>(list.AsArray().size()) != layers) {
    reader.Wrong("layer_types", Message("a list of ", layers, " entries"));
  }
  std::vector<bool> out;
  for (const Value& item : list.AsArray()) {
    if (item != Value("sliding_attention") && item != Value("full_attention")) {
      reader.Unsupported("layer_types", "only full_attention and sliding_attention are supported");
    }
    out.push_back(item == Value("sliding_attention"));
  }
  return out;
}

// The window in tokens, 0 for none, by the rule of the architecture.
int64_t ReadWindowSize(ConfigReader& reader, const Architecture& row) {
  const bool given = reader.Find("sliding_window") != nullptr;
  const std::optional<bool> use = reader.Bool("use_sliding_window");
  if (row.window == WindowRule::kNone) {
    if (given) reader.Unsupported("sliding_window", "this architecture has no sliding window");
    if (use.value_or(false)) {
      reader.Unsupported("use_sliding_window", "this architecture has no sliding window");
    }
    return 0;
  }
  if (row.window == WindowRule::kSwitch && !use.value_or(false)) return 0;
  if (given && !use.value_or(true)) {
    reader.Unsupported("use_sliding_window", "this architecture always uses its sliding window");
  }
  if (given) return reader.Size("sliding_window", kLargestPositions);
  return reader.Has("sliding_window") ? 0 : row.default_sliding_window;  // null means none
}

void ReadWindows(ConfigReader& reader, const Architecture& row, ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.layers);
  config.sliding_window = ReadWindowSize(reader, row);
  const bool any = config.sliding_window > 0;
  const Value* types = reader.Find("layer_types");
  if (types == nullptr) {
    // 28 is the default of both Qwen configurations.
    const int64_t first =
        row.window == WindowRule::kSwitch ? reader.Int("max_window_layers").value_or(28) : 0;
    for (int64_t i = 0; i < config.layers; ++i) {
      config.layer_uses_window.push_back(any && i >= first);
    }
    return;
  }
  config.layer_uses_window = ReadLayerTypes(reader, *types, config.layers);
  for (size_t i = 0; i < layers; ++i) {
    const bool sliding = config.layer_uses_window[i];
    if ((sliding && !any) || (!sliding && any && row.window == WindowRule::kAll)) {
      reader.Unsupported("layer_types", "it contradicts sliding_window");
    }
  }
}

// The object with the rotary parameters, nullptr when the model has none beyond theta.
const Value* FindRopeObject(ConfigReader& reader) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const Value* value = reader.Find(field);
    if (value == nullptr) continue;
    if (!value->is_object()) reader.Wrong(field, "an object");
    if (!value->AsObject().empty()) return value;
  }
  return nullptr;
}

std::string ReadRopeType(ConfigReader& rope) {
  const std::optional<std::string> type = rope.Text("rope_type");
  const std::optional<std::string> older = rope.Text("type");
  if (type && older && *type != *older) {
    rope.Unsupported("type", "it contradicts rope_type " + Quoted(*type));
  }
  return type ? *type : older.value_or("default");
}

void ReadYarn(ConfigReader& rope, RopeParameters& p) {
  p.beta_fast = rope.PositiveOr("beta_fast", 32);
  p.beta_slow = rope.PositiveOr("beta_slow", 1);
  p.mscale = rope.Number("mscale").value_or(0);
  p.mscale_all_dim = rope.Number("mscale_all_dim").value_or(0);
  p.truncate = rope.Bool("truncate").value_or(true);
  if (rope.Find("attention_factor") != nullptr) {
    p.attention_factor = rope.PositiveOr("attention_factor", 1);
  }
}

void ReadRope(ConfigReader& reader, ModelConfig& config) {
  RopeParameters p;
  p.theta = reader.PositiveOr("rope_theta", 10000);
  const Value* object = FindRopeObject(reader);
  const auto outer_original = reader.Number("original_max_position_embeddings");
  if (object != nullptr) {
    ConfigReader rope(*object, reader.source() + ": rotary parameters");
    p.theta = rope.PositiveOr("rope_theta", p.theta);
    p.type = ReadRopeType(rope);
    if (rope.Number("partial_rotary_factor").value_or(1) != 1) {
      rope.Unsupported("partial_rotary_factor", "partial rotary embedding is not supported");
    }
    if (p.type != "default" && p.type != "linear" && p.type != "llama3" && p.type != "yarn") {
      rope.Unsupported(rope.Find("rope_type") != nullptr ? "rope_type" : "type",
                       "supported are default, linear, llama3 and yarn");
    }
    const auto positions = static_cast<double>(config.max_positions);
    if (p.type == "llama3" || p.type == "yarn") {
      p.original_positions = rope.PositiveOr("original_max_position_embeddings", positions);
      if (outer_original) p.original_positions = *outer_original;
      if (!(p.original_positions > 0)) rope.Wrong("original_max_position_embeddings", "a size");
    }
    if (p.type == "yarn" && rope.Find("factor") == nullptr) {
      p.factor = positions / p.original_positions;
    } else if (p.type != "default") {
      if (rope.Find("factor") == nullptr) rope.Wrong("factor", "a number above zero");
      p.factor = rope.PositiveOr("factor", 1);
    }
    if (p.type == "llama3") {
      p.low_freq_factor = rope.PositiveOr("low_freq_factor", 1);
      p.high_freq_factor = rope.PositiveOr("high_freq_factor", 4);
      if (!(p.high_freq_factor > p.low_freq_factor)) {
        rope.Wrong("high_freq_factor", "a number above low_freq_factor");
      }
    }
    if (p.type == "yarn") ReadYarn(rope, p);
    rope.RefuseUnknown({}, kUnknownHint);
  }
  if (p.theta <= 1) reader.Wrong("rope_theta", "a number above one");
  config.rope = ComputeRope(p, config.head_dim);
}

// A token id, the first of a list, or -1.
int64_t ReadToken(ConfigReader& reader, const std::string& field) {
  const Value* value = reader.Find(field);
  if (value != nullptr && value->is_array()) {
    if (value->AsArray().empty()) return -1;
    value = &value->AsArray()[0];
  }
  if (value == nullptr) return -1;
  if (!value->is_int()) reader.Wrong(field, "a token id or a list of them");
  return value->AsInt();
}

}  // namespace

ParsedConfig ParseHfConfig(const Value& json, const std::string& source) {
  ConfigReader reader(json, source);
  ParsedConfig out;
  const Architecture& row = ReadArchitecture(reader);
  out.architecture = &row;
  ModelConfig& config = out.config;
  config.architecture = std::string(row.name);
  CheckFixedFields(reader);
  ReadSizes(reader, row, config);
  ReadSwitches(reader, row, config);
  ReadWindows(reader, row, config);
  CheckConfig(config, source);
  ReadRope(reader, config);
  config.bos_token = ReadToken(reader, "bos_token_id");
  config.eos_token = ReadToken(reader, "eos_token_id");
  reader.RefuseUnknown(kHarmless, kUnknownHint);
  return out;
}

}  // namespace oscar
