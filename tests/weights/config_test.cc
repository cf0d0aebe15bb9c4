// Configurations of published models, and fields that must be refused.
#include "oscar/weights/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "support/golden.h"
#include "support/model_files.h"
#include "weights/tiny_model.h"

namespace oscar {
namespace {

ModelConfig Parse(const std::string& json) {
  return ParseHfConfig(Value::FromJson(json, "config.json"), "config.json").config;
}

struct Published {
  const char* name;
  const char* json;
  const char* architecture;
  int64_t layers, q_heads, kv_heads, head_dim;
  int64_t first_window, last_window;  // of the first and the last layer, 0 for none
  double slowest;                     // last inverse frequency
  bool qkv_bias, tied, qk_norm;
};

// The slowest frequency is theta^(-(D-2)/D), divided by the factor of llama3 and yarn.
const Published kPublished[] = {
    {"SmolLM2-135M-Instruct", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
      "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
      "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
      "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
      "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "use_cache": true,
      "vocab_size": 49152})",
     "llama", 30, 9, 3, 64, 0, 0, std::pow(100000.0, -62.0 / 64), false, true, false},
    {"Llama-3.2-1B", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
      "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
      "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
      "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256})",
     "llama", 16, 32, 8, 64, 0, 0, std::pow(500000.0, -62.0 / 64) / 32, false, true, false},
    {"Mistral-7B-v0.1", R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
      "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
      "vocab_size": 32000})",
     "mistral", 32, 32, 8, 128, 4096, 4096, std::pow(10000.0, -126.0 / 128), false, false, false},
    {"Mistral-Nemo", R"({"architectures": ["MistralForCausalLM"], "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 14336,
      "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
      "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
      "vocab_size": 131072})",
     "mistral", 40, 32, 8, 128, 0, 0, std::pow(1000000.0, -126.0 / 128), false, false, false},
    {"Qwen2.5-7B-Instruct", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
      "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
      "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 32768,
      "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
      "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false,
      "use_sliding_window": false, "vocab_size": 152064})",
     "qwen2", 28, 28, 4, 128, 0, 0, std::pow(1000000.0, -126.0 / 128), true, false, false},
    {"qwen2 with windows from layer 3", R"({"hidden_size": 64, "intermediate_size": 96,
      "max_window_layers": 3, "model_type": "qwen2", "num_attention_heads": 4,
      "num_hidden_layers": 5, "num_key_value_heads": 2, "sliding_window": 128,
      "use_sliding_window": true, "vocab_size": 10})",
     "qwen2", 5, 4, 2, 16, 0, 128, std::pow(10000.0, -14.0 / 16), true, false, false},
    {"qwen2 with layer_types", R"({"hidden_size": 64, "intermediate_size": 96,
      "layer_types": ["sliding_attention", "full_attention"], "model_type": "qwen2",
      "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
      "sliding_window": 128, "use_sliding_window": true, "vocab_size": 10})",
     "qwen2", 2, 4, 2, 16, 128, 0, std::pow(10000.0, -14.0 / 16), true, false, false},
    {"Qwen3-4B", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
      "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36,
      "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
      "use_sliding_window": false, "vocab_size": 151936})",
     "qwen3", 36, 32, 8, 128, 0, 0, std::pow(1000000.0, -126.0 / 128), false, true, true},
    {"Qwen3-8B as transformers 5 saves it, with yarn",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "dtype": "bfloat16",
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 12288, "layer_types": ["full_attention", "full_attention"],
      "max_position_embeddings": 131072, "max_window_layers": 2, "model_type": "qwen3",
      "num_attention_heads": 32, "num_hidden_layers": 2, "num_key_value_heads": 8,
      "pad_token_id": null, "rms_norm_eps": 1e-06, "rope_parameters": {"factor": 4.0,
      "original_max_position_embeddings": 32768, "rope_theta": 1000000, "rope_type": "yarn"},
      "sliding_window": null, "tie_word_embeddings": false, "transformers_version": "5.24.0",
      "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})",
     "qwen3", 2, 32, 8, 128, 0, 0, std::pow(1000000.0, -126.0 / 128) / 4, false, false, true},
};

TEST(Config, PublishedModels) {
  for (const Published& p : kPublished) {
    SCOPED_TRACE(p.name);
    const ModelConfig config = Parse(p.json);
    EXPECT_EQ(config.architecture, p.architecture);
    EXPECT_EQ(config.layers, p.layers);
    EXPECT_EQ(config.qkv_bias, p.qkv_bias);
    EXPECT_FALSE(config.o_bias);
    EXPECT_EQ(config.tied_embeddings, p.tied);
    EXPECT_EQ(config.qk_norm, p.qk_norm);
    for (const int64_t layer : {int64_t{0}, p.layers - 1}) {
      const LayerShape shape = config.ShapeOfLayer(layer);
      EXPECT_EQ(shape.q_heads, p.q_heads);
      EXPECT_EQ(shape.kv_heads, p.kv_heads);
      EXPECT_EQ(shape.k_dim, p.head_dim);
      EXPECT_EQ(shape.v_dim, p.head_dim);
      EXPECT_EQ(shape.window, layer == 0 ? p.first_window : p.last_window);
      EXPECT_EQ(shape.rope, "full");
    }
    ASSERT_EQ(config.rope.inv_freq.size(), static_cast<size_t>(p.head_dim) / 2);
    EXPECT_EQ(config.rope.inv_freq[0], 1.0);
    EXPECT_NEAR(config.rope.inv_freq.back() / p.slowest, 1, 1e-6);
  }
}

// Models of other architectures, with the fields that identify them.
TEST(Config, OtherArchitecturesAreRefusedByName) {
  const struct {
    const char* name;
    const char* json;
    const char* type;
  } cases[] = {
      {"Gemma-4-12B", R"({"architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4", "text_config": {"head_dim": 256, "global_head_dim": 512}})",
       "gemma4"},
      {"Kimi-K3", R"({"architectures": ["KimiK3ForCausalLM"], "model_type": "kimi_k3",
        "text_config": {"kda_layers": [1, 2, 3], "v_head_dim": 128}})",
       "kimi_k3"},
      {"Phi-3-mini", R"({"architectures": ["Phi3ForCausalLM"], "hidden_size": 3072,
        "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32})",
       "phi3"},
      {"gpt-oss-20b", R"({"architectures": ["GptOssForCausalLM"], "head_dim": 64,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_key_value_heads": 8})",
       "gpt_oss"},
      {"Phi-4-reasoning-plus", R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
        "num_attention_heads": 40, "num_key_value_heads": 10})",
       "phi3"},
      {"SmolLM3-3B", R"({"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0]})", "smollm3"},
      {"no type", R"({"hidden_size": 1})", "''"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    OSCAR_EXPECT_ERROR(Parse(c.json), ErrorCode::kUnsupported, c.type, "architecture",
                       "config.json");
  }
}

struct Change {
  const char* type;
  const char* json;  // merged into a valid configuration of that type
  ErrorCode code;
  const char* named;
};

TEST(Config, FieldsThatChangeTheComputationAreRefused) {
  const Change changes[] = {
      {"llama", R"({"some_new_trick": 3})", ErrorCode::kUnsupported, "some_new_trick"},
      {"llama", R"({"attention_multiplier": 0.5})", ErrorCode::kUnsupported,
       "attention_multiplier"},
      {"llama", R"({"embedding_multiplier": 12.0})", ErrorCode::kUnsupported,
       "embedding_multiplier"},
      {"llama", R"({"hidden_act": "gelu"})", ErrorCode::kUnsupported, "hidden_act"},
      {"llama", R"({"rope_interleaved": true})", ErrorCode::kUnsupported, "rope_interleaved"},
      {"llama", R"({"partial_rotary_factor": 0.5})", ErrorCode::kUnsupported,
       "partial_rotary_factor"},
      {"llama", R"({"sliding_window": 1024})", ErrorCode::kUnsupported, "sliding_window"},
      {"llama", R"({"num_local_experts": 8})", ErrorCode::kUnsupported, "num_local_experts"},
      {"llama", R"({"no_rope_layer_interval": 4})", ErrorCode::kUnsupported,
       "no_rope_layer_interval"},
      {"llama", R"({"final_logit_softcapping": 30.0})", ErrorCode::kUnsupported,
       "final_logit_softcapping"},
      {"llama", R"({"quantization_config": {"quant_method": "gptq"}})", ErrorCode::kUnsupported,
       "quantization_config"},
      {"llama", R"({"auto_map": {"AutoModelForCausalLM": "x.Y"}})", ErrorCode::kUnsupported,
       "auto_map"},
      {"llama", R"({"architectures": ["LlamaForSequenceClassification"]})", ErrorCode::kUnsupported,
       "architectures"},
      {"llama", R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})", ErrorCode::kUnsupported,
       "dynamic"},
      {"llama", R"({"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}})",
       ErrorCode::kUnsupported, "longrope"},
      {"llama", R"({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})",
       ErrorCode::kUnsupported, "mrope"},
      {"llama", R"({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}})",
       ErrorCode::kUnsupported, "mrope_section"},
      {"llama", R"({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}})",
       ErrorCode::kUnsupported, "type"},
      {"llama", R"({"rope_scaling": {"type": "linear"}})", ErrorCode::kFormat, "factor"},
      {"llama", R"({"rope_scaling": {"type": "linear", "factor": 0}})", ErrorCode::kFormat,
       "factor"},
      {"llama", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
       ErrorCode::kUnsupported, "full_attention"},
      {"llama", R"({"rope_theta": -1})", ErrorCode::kFormat, "rope_theta"},
      {"llama", R"({"rope_theta": 1})", ErrorCode::kFormat, "rope_theta"},
      {"llama", R"({"layer_types": ["linear_attention", "full_attention"]})",
       ErrorCode::kUnsupported, "layer_types"},
      {"llama", R"({"layer_types": ["full_attention"]})", ErrorCode::kFormat, "layer_types"},
      {"llama", R"({"num_attention_heads": 0})", ErrorCode::kFormat, "num_attention_heads"},
      {"llama", R"({"num_attention_heads": "4"})", ErrorCode::kFormat, "num_attention_heads"},
      {"llama", R"({"num_key_value_heads": 3})", ErrorCode::kFormat, "3 key-value heads"},
      {"llama", R"({"head_dim": 23})", ErrorCode::kUnsupported, "head_dim"},
      {"llama", R"({"hidden_size": 1e30})", ErrorCode::kFormat, "hidden_size"},
      {"llama", R"({"hidden_size": null})", ErrorCode::kFormat, "hidden_size"},
      {"llama", R"({"rms_norm_eps": 0})", ErrorCode::kFormat, "rms_norm_eps"},
      {"llama", R"({"tie_word_embeddings": 1})", ErrorCode::kFormat, "tie_word_embeddings"},
      {"llama", R"({"eos_token_id": "</s>"})", ErrorCode::kFormat, "eos_token_id"},
      {"mistral", R"({"attention_bias": true})", ErrorCode::kUnsupported, "attention_bias"},
      {"mistral", R"({"mlp_bias": true})", ErrorCode::kUnsupported, "mlp_bias"},
      {"mistral",
       R"({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]})",
       ErrorCode::kUnsupported, "layer_types"},
      {"qwen2", R"({"attention_bias": false})", ErrorCode::kUnsupported, "attention_bias"},
      {"qwen2", R"({"use_mrope": true})", ErrorCode::kUnsupported, "use_mrope"},
      {"qwen2", R"({"layer_types": ["sliding_attention", "full_attention"]})",
       ErrorCode::kUnsupported, "layer_types"},
      {"qwen3", R"({"num_experts": 128})", ErrorCode::kUnsupported, "num_experts"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(std::string(change.type) + " " + change.json);
    test::TinySpec spec;
    spec.type = change.type;
    nlohmann::json config = test::TinyConfig(spec);
    ASSERT_NO_THROW(Parse(config.dump()));
    config.update(nlohmann::json::parse(change.json));
    OSCAR_EXPECT_ERROR(Parse(config.dump()), change.code, change.named, "config.json");
  }
}

TEST(Config, AbsentFieldsTakeTheirDefaults) {
  // A missing sliding_window of a Mistral is 4096, an explicit null is none.
  nlohmann::json config = test::TinyConfig({.type = "mistral"});
  EXPECT_EQ(Parse(config.dump()).ShapeOfLayer(1).window, 0);
  config.erase("sliding_window");
  EXPECT_EQ(Parse(config.dump()).ShapeOfLayer(1).window, 4096);
  // head_dim of a Qwen3 is 128 when absent, of a Llama hidden / heads.
  config = test::TinyConfig({.type = "qwen3"});
  config.erase("head_dim");
  EXPECT_EQ(Parse(config.dump()).head_dim, 128);
  config = test::TinyConfig({.type = "llama"});
  config.erase("head_dim");
  config.erase("num_key_value_heads");
  EXPECT_EQ(Parse(config.dump()).head_dim, 16);
  EXPECT_EQ(Parse(config.dump()).kv_heads, 4);
  config["num_attention_heads"] = 5;
  OSCAR_EXPECT_ERROR(Parse(config.dump()), ErrorCode::kFormat, "head_dim", "64", "5 heads");
}

// GGUF: what the metadata says beyond the sizes.
ModelConfig ParseGguf(const std::function<void(test::GgufBuilder&)>& extra, bool divisors = false,
                      const std::string& type = "llama") {
  test::TinySpec spec{.type = type};
  spec.qkv_bias = type == "qwen2";
  spec.qk_norm = type == "qwen3";
  test::GgufBuilder builder = test::TinyGguf(spec, test::TinyTensors(spec));
  extra(builder);
  if (divisors) {
    builder.Tensor(test::F32Tensor("rope_freqs.weight", {12}, std::vector<float>(12, 8.0F)));
  }
  const auto path = test::FreshFolder("weights-gguf-config") / "m.gguf";
  test::WriteBytes(path, builder.Finish());
  return OpenModel(path)->config();
}

TEST(Config, GgufScaling) {
  const std::vector<double> plain = ParseGguf([](auto&) {}).rope.inv_freq;
  const auto linear = [](test::GgufBuilder& b) {
    b.Text("llama.rope.scaling.type", "linear");
    b.F32("llama.rope.scaling.factor", 4);
  };
  const auto old_linear = [](test::GgufBuilder& b) { b.F32("llama.rope.scale_linear", 4); };
  for (size_t i = 0; i < plain.size(); ++i) {
    // Division by a power of two is exact.
    EXPECT_EQ(ParseGguf(linear).rope.inv_freq[i] * 4, plain[i]);
    EXPECT_EQ(ParseGguf(old_linear).rope.inv_freq[i] * 4, plain[i]);
    EXPECT_EQ(ParseGguf([](auto&) {}, true).rope.inv_freq[i] * 8, plain[i]);
  }
  const RopeSpec yarn = ParseGguf([](test::GgufBuilder& b) {
                          b.Text("llama.rope.scaling.type", "yarn");
                          b.F32("llama.rope.scaling.factor", 4);
                          b.U32("llama.rope.scaling.original_context_length", 1024);
                        }).rope;
  EXPECT_EQ(yarn.inv_freq[0], plain[0]);
  EXPECT_NEAR(yarn.inv_freq.back() * 4, plain.back(), 1e-6 * plain.back());
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4.0) + 1, 1e-6);
}

TEST(Config, GgufWindow) {
  const ModelConfig config =
      ParseGguf([](test::GgufBuilder& b) { b.U32("llama.attention.sliding_window", 512); });
  EXPECT_EQ(config.ShapeOfLayer(0).window, 512);
  EXPECT_EQ(config.ShapeOfLayer(1).window, 512);
}

TEST(Config, GgufKeysThatChangeTheComputationAreRefused) {
  const auto refuse = [](const std::function<void(test::GgufBuilder&)>& extra, const char* named,
                         const std::string& type = "llama") {
    OSCAR_EXPECT_ERROR(ParseGguf(extra, false, type), ErrorCode::kUnsupported, named, "m.gguf");
  };
  refuse([](auto& b) { b.F32("llama.attention.scale", 0.5); }, "llama.attention.scale");
  refuse([](auto& b) { b.U32("llama.expert_count", 8); }, "llama.expert_count");
  refuse([](auto& b) { b.F32("llama.logit_scale", 8); }, "llama.logit_scale");
  refuse([](auto& b) { b.Bool("llama.attention.causal", false); }, "llama.attention.causal");
  refuse([](auto& b) { b.Text("llama.rope.scaling.type", "longrope"); }, "longrope");
  refuse([](auto& b) { b.U32("qwen2.attention.sliding_window", 64); }, "sliding_window", "qwen2");
}

}  // namespace
}  // namespace oscar
