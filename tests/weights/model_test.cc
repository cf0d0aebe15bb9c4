// Models written by the tests and read back through the public interface.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/weights/model_weights.h"
#include "support/golden.h"
#include "support/model_files.h"
#include "weights/tiny_model.h"

namespace oscar {
namespace {

using test::FileTensor;
using test::TinySpec;

std::string SpecName(const TinySpec& spec) {
  return spec.type + (spec.qkv_bias ? "-bias" : "") + (spec.tied ? "-tied" : "");
}

// Hugging Face name of each member of LayerWeights.
const std::map<std::string, std::vector<float> LayerWeights::*>& Members() {
  static const std::map<std::string, std::vector<float> LayerWeights::*> members = {
      {"input_layernorm.weight", &LayerWeights::attn_norm},
      {"post_attention_layernorm.weight", &LayerWeights::ffn_norm},
      {"self_attn.q_proj.weight", &LayerWeights::q},
      {"self_attn.k_proj.weight", &LayerWeights::k},
      {"self_attn.v_proj.weight", &LayerWeights::v},
      {"self_attn.o_proj.weight", &LayerWeights::o},
      {"self_attn.q_proj.bias", &LayerWeights::q_bias},
      {"self_attn.k_proj.bias", &LayerWeights::k_bias},
      {"self_attn.v_proj.bias", &LayerWeights::v_bias},
      {"self_attn.o_proj.bias", &LayerWeights::o_bias},
      {"self_attn.q_norm.weight", &LayerWeights::q_norm},
      {"self_attn.k_norm.weight", &LayerWeights::k_norm},
      {"mlp.gate_proj.weight", &LayerWeights::gate},
      {"mlp.up_proj.weight", &LayerWeights::up},
      {"mlp.down_proj.weight", &LayerWeights::down},
      {"mlp.gate_proj.bias", &LayerWeights::gate_bias},
      {"mlp.up_proj.bias", &LayerWeights::up_bias},
      {"mlp.down_proj.bias", &LayerWeights::down_bias}};
  return members;
}

// Every tensor of `tensors` (float32) must come out of the model, and nothing else.
void ExpectModel(const ModelWeights& model, const TinySpec& spec,
                 const std::vector<FileTensor>& tensors, int threads) {
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const LayerWeights weights = model.LoadLayer(layer, threads);
    int64_t bytes = 0;
    for (const auto& [name, member] : Members()) {
      const std::string full = "model.layers." + std::to_string(layer) + "." + name;
      std::vector<float> expected;
      for (const FileTensor& tensor : tensors) {
        if (tensor.name == full) expected = test::Floats(tensor);
      }
      EXPECT_EQ(weights.*member, expected) << full;
      bytes += static_cast<int64_t>(expected.size() * sizeof(float));
    }
    EXPECT_EQ(model.LayerBytes(), bytes);
    model.ReleaseLayer(layer);
  }
  const std::vector<float> embedding =
      test::Floats(test::Named(tensors, "model.embed_tokens.weight"));
  std::vector<int32_t> all;
  for (int32_t id = 0; id < spec.vocab; ++id) all.push_back(id);
  EXPECT_EQ(model.EmbeddingRows(all), embedding);
  EXPECT_EQ(model.FinalNorm(), test::Floats(test::Named(tensors, "model.norm.weight")));
  const std::vector<float> head =
      spec.tied ? embedding : test::Floats(test::Named(tensors, "lm_head.weight"));
  EXPECT_EQ(model.HeadRowsRange(0, spec.vocab, threads), head);
  EXPECT_EQ(model.HeadRowsRange(3, 5, threads),
            std::vector<float>(head.begin() + 3 * spec.hidden, head.begin() + 5 * spec.hidden));
  EXPECT_TRUE(model.HeadRowsRange(3, 3, threads).empty());
}

void ExpectConfig(const ModelConfig& config, const TinySpec& spec) {
  EXPECT_EQ(config.layers, spec.layers);
  EXPECT_EQ(config.hidden, spec.hidden);
  EXPECT_EQ(config.intermediate, spec.intermediate);
  EXPECT_EQ(config.vocab, spec.vocab);
  EXPECT_EQ(config.q_heads, spec.q_heads);
  EXPECT_EQ(config.kv_heads, spec.kv_heads);
  EXPECT_EQ(config.head_dim, spec.head_dim);
  EXPECT_EQ(config.qkv_bias, spec.qkv_bias);
  EXPECT_EQ(config.o_bias, spec.o_bias);
  EXPECT_EQ(config.mlp_bias, spec.mlp_bias);
  EXPECT_EQ(config.qk_norm, spec.qk_norm);
  EXPECT_EQ(config.tied_embeddings, spec.tied);
  EXPECT_EQ(config.max_positions, 4096);
  EXPECT_EQ(config.bos_token, 1);
  EXPECT_EQ(config.eos_token, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(config.rms_eps), 1e-5F);
  ASSERT_EQ(config.rope.inv_freq.size(), static_cast<size_t>(spec.head_dim) / 2);
  // theta^(-2/D) to float32 accuracy.
  EXPECT_NEAR(config.rope.inv_freq[1], std::pow(50000.0, -2.0 / static_cast<double>(spec.head_dim)),
              1e-7);
  const LayerShape shape = config.ShapeOfLayer(0);
  EXPECT_EQ(shape.k_dim, spec.head_dim);
  EXPECT_EQ(shape.window, 0);
  EXPECT_DOUBLE_EQ(shape.softmax_scale, 1 / std::sqrt(static_cast<double>(spec.head_dim)));
}

TEST(Model, FolderGivesEveryTensor) {
  for (const TinySpec& spec : test::TinySpecs()) {
    SCOPED_TRACE(SpecName(spec));
    const auto folder = test::FreshFolder("weights-folder-" + SpecName(spec));
    const std::vector<FileTensor> tensors = test::TinyTensors(spec);
    test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
    const auto model = OpenModel(folder);
    ExpectConfig(model->config(), spec);
    EXPECT_EQ(model->config().architecture, spec.type);
    EXPECT_EQ(model->gguf_metadata(), nullptr);
    EXPECT_EQ(model->model_id(), folder.filename().string());
    EXPECT_EQ(OpenModel(folder / "")->model_id(), folder.filename().string());
    ExpectModel(*model, spec, tensors, 1);
    ExpectModel(*model, spec, tensors, 3);
  }
}

// The same model as GGUF: same values in the same order, q and k rows put back, same hash.
TEST(Model, GgufGivesWhatTheFolderGives) {
  for (const TinySpec& spec : test::TinySpecs()) {
    SCOPED_TRACE(SpecName(spec));
    const auto folder = test::FreshFolder("weights-gguf-" + SpecName(spec));
    const std::vector<FileTensor> tensors = test::TinyTensors(spec);
    test::WriteTinyFolder(folder / "hf", test::TinyConfig(spec), tensors);
    for (const uint32_t version : {2U, 3U}) {
      test::GgufBuilder builder = test::TinyGguf(spec, tensors);
      builder.version = version;
      test::WriteBytes(folder / "tiny.gguf", builder.Finish());
      const auto model = OpenModel(folder / "tiny.gguf");
      ExpectConfig(model->config(), spec);
      ExpectModel(*model, spec, tensors, 2);
      EXPECT_EQ(model->model_id(), "Tiny " + spec.type);
      EXPECT_EQ(model->config_hash(), OpenModel(folder / "hf")->config_hash());
      ASSERT_NE(model->gguf_metadata(), nullptr);
      EXPECT_EQ(model->gguf_metadata()->At("general.name").AsString(), "Tiny " + spec.type);
    }
  }
}

// 16-bit floats widen exactly.
TEST(Model, SixteenBitFloatsInBothFormats) {
  TinySpec spec;
  spec.qkv_bias = spec.o_bias = true;
  const std::vector<FileTensor> tensors = test::TinyTensors(spec);
  for (const std::string dtype : {"F16", "BF16"}) {
    const auto folder = test::FreshFolder("weights-" + dtype);
    const std::vector<FileTensor> stored = test::Rounded(tensors, dtype);
    std::vector<FileTensor> expected = tensors;
    for (FileTensor& tensor : expected) {
      std::vector<float> values = test::Floats(tensor);
      for (float& value : values) {
        value = dtype == "F16" ? ToFloat(ToFloat16(value)) : RoundToBFloat16(value);
      }
      tensor.data = test::FloatBytes(values);
    }
    test::WriteTinyFolder(folder, test::TinyConfig(spec), stored);
    ExpectModel(*OpenModel(folder), spec, expected, 2);
    test::WriteBytes(folder / "tiny.gguf", test::TinyGguf(spec, stored).Finish());
    ExpectModel(*OpenModel(folder / "tiny.gguf"), spec, expected, 2);
  }
}

TEST(Model, ShardsAreOneModel) {
  const TinySpec spec;
  const std::vector<FileTensor> tensors = test::TinyTensors(spec);
  const auto folder = test::FreshFolder("weights-shards");
  std::ofstream(folder / "config.json") << test::TinyConfig(spec).dump();
  std::vector<FileTensor> shards[3];
  nlohmann::json map;
  for (size_t i = 0; i < tensors.size(); ++i) {
    shards[i % 3].push_back(tensors[i]);
    map[tensors[i].name] = "part-" + std::to_string(i % 3) + ".safetensors";
  }
  for (size_t i = 0; i < 3; ++i) {
    test::WriteSafetensors(folder / ("part-" + std::to_string(i) + ".safetensors"), shards[i]);
  }
  std::ofstream(folder / "model.safetensors.index.json")
      << nlohmann::json{{"weight_map", map}}.dump();
  ExpectModel(*OpenModel(folder), spec, tensors, 2);

  std::filesystem::remove(folder / "part-1.safetensors");
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kIo, "part-1.safetensors", "missing");
}

// Checkpoints of the bare decoder name their tensors without "model.".
TEST(Model, BareDecoderNames) {
  TinySpec spec;
  spec.tied = true;
  const std::vector<FileTensor> tensors = test::TinyTensors(spec);
  std::vector<FileTensor> bare = tensors;
  for (FileTensor& tensor : bare) tensor.name = tensor.name.substr(6);
  const auto folder = test::FreshFolder("weights-bare");
  test::WriteTinyFolder(folder, test::TinyConfig(spec), bare);
  ExpectModel(*OpenModel(folder), spec, tensors, 1);
}

TEST(Model, StoredCopyOfATiedHead) {
  TinySpec spec;
  spec.tied = true;
  std::vector<FileTensor> tensors = test::TinyTensors(spec);
  FileTensor copy = test::Named(tensors, "model.embed_tokens.weight");
  copy.name = "lm_head.weight";
  const auto folder = test::FreshFolder("weights-tied-copy");
  tensors.push_back(copy);
  test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
  ExpectModel(*OpenModel(folder), spec, tensors, 1);

  tensors.back().data.back() ^= 1;
  test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kFormat, "lm_head.weight",
                     "model.embed_tokens.weight");
}

TEST(Model, CachedSnapshotsAreNamedByTheirRepository) {
  const TinySpec spec;
  const auto root = test::FreshFolder("weights-cache");
  const auto folder = root / "models--SomeOrg--Some-Model-1B" / "snapshots" / "0123abcd";
  test::WriteTinyFolder(folder, test::TinyConfig(spec), test::TinyTensors(spec));
  EXPECT_EQ(OpenModel(folder)->model_id(), "Some-Model-1B");
}

TEST(Model, TokenIdsOutsideTheVocabulary) {
  const TinySpec spec;
  const auto folder = test::FreshFolder("weights-ids");
  test::WriteTinyFolder(folder, test::TinyConfig(spec), test::TinyTensors(spec));
  const auto model = OpenModel(folder);
  OSCAR_EXPECT_ERROR(model->EmbeddingRows({0, 40}), ErrorCode::kData, "token id 40", "position 1");
  OSCAR_EXPECT_ERROR(model->EmbeddingRows({-1}), ErrorCode::kData, "token id -1");
}

TEST(Model, NonFiniteWeightsAreNamed) {
  const TinySpec spec;
  std::vector<FileTensor> tensors = test::TinyTensors(spec);
  for (FileTensor& tensor : tensors) {
    if (tensor.name != "model.layers.1.mlp.up_proj.weight") continue;
    std::vector<float> values = test::Floats(tensor);
    values[5 * 64 + 9] = std::nanf("");
    tensor.data = test::FloatBytes(values);
  }
  const auto folder = test::FreshFolder("weights-nan");
  test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
  const auto model = OpenModel(folder);
  EXPECT_NO_THROW(model->LoadLayer(0, 2));
  OSCAR_EXPECT_ERROR(model->LoadLayer(1, 2), ErrorCode::kNumeric,
                     "model.layers.1.mlp.up_proj.weight", "row 5", "column 9");
}

TEST(Model, HashSeesWhatChangesTheComputation) {
  const TinySpec spec;
  const auto folder = test::FreshFolder("weights-hash");
  const auto hash_with = [&](const nlohmann::json& changes) {
    nlohmann::json config = test::TinyConfig(spec);
    config.update(changes);
    test::WriteTinyFolder(folder, config, test::TinyTensors(spec));
    return OpenModel(folder)->config_hash();
  };
  const std::string plain = hash_with(nlohmann::json::object());
  EXPECT_EQ(plain.size(), 64U);
  EXPECT_EQ(plain, hash_with({{"torch_dtype", "float16"}}));
  EXPECT_EQ(plain, hash_with({{"eos_token_id", {7, 8}}}));
  EXPECT_NE(plain, hash_with({{"rope_theta", 10000}}));
  EXPECT_NE(plain, hash_with({{"rms_norm_eps", 1e-6}}));
  EXPECT_NE(plain, hash_with({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}));
}

}  // namespace
}  // namespace oscar
