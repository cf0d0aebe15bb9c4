// Damaged and dishonest files: each is refused with file and tensor named.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/weights/gguf.h"
#include "oscar/weights/model_weights.h"
#include "oscar/weights/safetensors.h"
#include "support/golden.h"
#include "support/model_files.h"
#include "weights/tiny_model.h"

namespace oscar {
namespace {

using nlohmann::json;
using test::Bytes;
using test::FileTensor;
using test::GgufBuilder;
using test::TinySpec;

// A folder whose model.safetensors holds these bytes.
std::filesystem::path FolderWith(const Bytes& bytes) {
  const auto folder = test::FreshFolder("weights-files");
  test::WriteBytes(folder / "model.safetensors", bytes);
  return folder;
}

struct Broken {
  const char* name;
  std::string header;
  size_t data_bytes;
  std::vector<std::string> named;
};

TEST(Safetensors, DamagedHeaders) {
  const std::string a = R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  const Broken cases[] = {
      {"not JSON", "{nope", 0, {"not valid JSON: line 1, column 3: expected"}},
      {"no object", "[1]", 0, {"not a JSON object"}},
      {"repeated", "{" + a + "," + a + "}", 8, {"'a'", "twice"}},
      {"no dtype", R"({"a": {"shape": [2], "data_offsets": [0, 8]}})", 8, {"'a'", "dtype"}},
      {"no shape", R"({"a": {"dtype": "F32", "data_offsets": [0, 8]}})", 8, {"'a'", "shape"}},
      {"no offsets", R"({"a": {"dtype": "F32", "shape": [2]}})", 8, {"'a'", "data_offsets"}},
      {"entry is a number", R"({"a": 3})", 0, {"'a'"}},
      {"negative size",
       R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})",
       8,
       {"'a'", "-2"}},
      {"fractional size",
       R"({"a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}})",
       8,
       {"'a'", "2.5"}},
      {"offsets backwards",
       R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})",
       8,
       {"'a'", "[8, 0]"}},
      {"three offsets",
       R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}})",
       8,
       {"'a'"}},
      {"shape lies",
       R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})",
       8,
       {"'a'", "[3]", "8 bytes"}},
      {"shape overflows",
       R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 4294967296],
           "data_offsets": [0, 8]}})",
       8,
       {"'a'"}},
      {"odd bytes",
       R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}})",
       9,
       {"'a'", "9 bytes"}},
      {"beyond the file", "{" + a + "}", 7, {"'a'", "ends at"}},
      {"offset near 2^64",
       R"({"a": {"dtype": "F32", "shape": [2],
           "data_offsets": [18446744073709551608, 18446744073709551615]}})",
       8,
       {"'a'"}},
      {"overlap",
       "{" + a + R"(, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
       12,
       {"'a'", "'b'", "overlap"}},
      {"gap",
       "{" + a + R"(, "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}})",
       16,
       {"no tensor"}},
      {"bytes at the end", "{" + a + "}", 12, {"no tensor"}},
  };
  for (const Broken& c : cases) {
    SCOPED_TRACE(c.name);
    const auto folder = FolderWith(test::SafetensorsBytes(c.header, Bytes(c.data_bytes)));
    try {
      OpenSafetensors(folder);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFormat) << error.what();
      const std::string text = error.what();
      EXPECT_NE(text.find("model.safetensors"), std::string::npos) << text;
      for (const std::string& part : c.named) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
      }
    }
  }
}

TEST(Safetensors, LyingHeaderLengths) {
  for (const uint64_t length :
       {uint64_t{1}, uint64_t{100}, uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7}) {
    Bytes bytes(8 + 20, '{');
    std::memcpy(bytes.data(), &length, 8);
    OSCAR_EXPECT_ERROR(OpenSafetensors(FolderWith(bytes)), ErrorCode::kFormat, "model.safetensors");
  }
  OSCAR_EXPECT_ERROR(OpenSafetensors(FolderWith({})), ErrorCode::kFormat, "0 bytes");
  OSCAR_EXPECT_ERROR(OpenSafetensors(FolderWith({1, 0, 0})), ErrorCode::kFormat, "3 bytes");
}

// Nesting must not exhaust the stack of whatever walks the values.
TEST(Safetensors, DeepNesting) {
  const std::string deep(1'000'000, '[');
  const std::string closed = deep + std::string(1'000'000, ']');
  const auto folder = FolderWith(test::SafetensorsBytes(
      R"({"a": {"dtype": "F32", "shape": )" + closed + R"(, "data_offsets": [0, 8]}})", Bytes(8)));
  OSCAR_EXPECT_ERROR(OpenSafetensors(folder), ErrorCode::kFormat, "nested too deeply");
  std::ofstream(folder / "config.json") << R"({"architectures": )" << closed << "}";
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kFormat, "config.json", "nested too deeply");
  std::ofstream(folder / "config.json") << deep;
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kFormat, "config.json");
}

TEST(Safetensors, EmptyTensorsAndMetadataAreFine) {
  const std::string header =
      R"({"__metadata__": {"format": "pt"},
          "e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]},
          "i": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
          "s": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}})";
  const TensorSet set = OpenSafetensors(FolderWith(test::SafetensorsBytes(header, Bytes(10))));
  EXPECT_EQ(set.tensors().size(), 3U);
  EXPECT_FALSE(set.Find("i")->supported);
  EXPECT_EQ(set.Find("__metadata__"), nullptr);
}

TEST(Safetensors, IndexThatLies) {
  const TinySpec spec;
  const std::vector<FileTensor> tensors = test::TinyTensors(spec);
  const auto open_with = [&](const json& index) {
    const auto folder = test::FreshFolder("weights-files");
    std::ofstream(folder / "config.json") << test::TinyConfig(spec).dump();
    test::WriteSafetensors(folder / "a.safetensors", tensors);
    std::ofstream(folder / "model.safetensors.index.json") << index.dump();
    OpenModel(folder);
  };
  json map;
  for (const FileTensor& tensor : tensors) map[tensor.name] = "a.safetensors";
  EXPECT_NO_THROW(open_with({{"weight_map", map}}));
  map["ghost"] = "a.safetensors";
  OSCAR_EXPECT_ERROR(open_with({{"weight_map", map}}), ErrorCode::kFormat, "'ghost'",
                     "a.safetensors");
  for (const char* escape : {"../a.safetensors", "/etc/passwd", "..", ""}) {
    map["ghost"] = escape;
    OSCAR_EXPECT_ERROR(open_with({{"weight_map", map}}), ErrorCode::kFormat, "'ghost'");
  }
  OSCAR_EXPECT_ERROR(open_with({{"weights", map}}), ErrorCode::kFormat, "weight_map");
  map["ghost"] = 3;
  OSCAR_EXPECT_ERROR(open_with({{"weight_map", map}}), ErrorCode::kFormat, "'ghost'");
}

TEST(Files, FoldersWithoutWeights) {
  OSCAR_EXPECT_ERROR(OpenModel("/no/such/model"), ErrorCode::kIo, "/no/such/model");
  const auto folder = test::FreshFolder("weights-files");
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kIo, "config.json");
  std::ofstream(folder / "config.json") << "{";
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kFormat, "config.json", "JSON");
  std::ofstream(folder / "config.json") << "[]";
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kFormat, "config.json");
  std::ofstream(folder / "config.json") << test::TinyConfig({}).dump();
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kIo, "model.safetensors");
  std::ofstream(folder / "pytorch_model.bin") << "x";
  OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kUnsupported, "pytorch_model.bin");
}

// Changes to one tensor of a good model, in both formats.
TEST(Files, TensorsThatDoNotFitTheConfiguration) {
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const auto with = [&](const std::function<void(FileTensor&)>& change, bool gguf) {
    const TinySpec spec;
    std::vector<FileTensor> tensors = test::TinyTensors(spec);
    for (FileTensor& tensor : tensors) {
      if (tensor.name == name) change(tensor);
    }
    std::erase_if(tensors, [](const FileTensor& tensor) { return tensor.name.empty(); });
    const auto folder = test::FreshFolder("weights-files");
    if (gguf) {
      test::WriteBytes(folder / "m.gguf", test::TinyGguf(spec, tensors).Finish());
      OpenModel(folder / "m.gguf");
    } else {
      test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
      OpenModel(folder);
    }
  };
  for (const bool gguf : {false, true}) {
    const std::string shown = gguf ? "blk.1.attn_k.weight" : name;
    OSCAR_EXPECT_ERROR(with([](FileTensor& t) { t.name.clear(); }, gguf), ErrorCode::kFormat, shown,
                       "missing", "[48, 64]");
    OSCAR_EXPECT_ERROR(with(
                           [](FileTensor& t) {
                             t.shape = {64, 48};
                           },
                           gguf),
                       ErrorCode::kFormat, shown, "[48, 64]", "[64, 48]");
    OSCAR_EXPECT_ERROR(with([](FileTensor& t) { t.shape = {3072}; }, gguf), ErrorCode::kFormat,
                       shown, "[3072]");
    OSCAR_EXPECT_ERROR(with(
                           [](FileTensor& t) {
                             t.dtype = "I32";
                             t.ggml_type = 26;
                           },
                           gguf),
                       ErrorCode::kUnsupported, shown, "'I32'");
  }
  OSCAR_EXPECT_ERROR(with(
                         [](FileTensor& t) {
                           t.dtype = "F8_E4M3";
                           t.data.resize(3072);
                         },
                         false),
                     ErrorCode::kUnsupported, "'F8_E4M3'");
  OSCAR_EXPECT_ERROR(with([](FileTensor& t) { t.ggml_type = 16; }, true), ErrorCode::kUnsupported,
                     "'IQ2_XXS'");
}

TEST(Files, TensorsOfNoUseAreRefused) {
  const TinySpec spec;
  std::vector<FileTensor> tensors = test::TinyTensors(spec);
  tensors.push_back(test::F32Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1}));
  const auto folder = test::FreshFolder("weights-files");
  test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
  EXPECT_NO_THROW(OpenModel(folder)) << "a stored copy of the frequencies does no harm";
  for (const char* extra :
       {"model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.mlp.experts.0.up_proj.weight", "vision_tower.weight"}) {
    tensors.back().name = extra;
    test::WriteTinyFolder(folder, test::TinyConfig(spec), tensors);
    OSCAR_EXPECT_ERROR(OpenModel(folder), ErrorCode::kUnsupported, extra, "model.safetensors");
  }
}

std::filesystem::path Gguf(const Bytes& bytes) {
  const auto path = test::FreshFolder("weights-files") / "m.gguf";
  test::WriteBytes(path, bytes);
  return path;
}

Bytes Number(uint64_t value) {
  Bytes out(8);
  std::memcpy(out.data(), &value, 8);
  return out;
}

TEST(Gguf, RefusedByName) {
  const auto gguf = [](const std::function<void(GgufBuilder&)>& change) {
    GgufBuilder builder;
    builder.Text("general.architecture", "llama");
    change(builder);
    return Gguf(builder.Finish());
  };
  OSCAR_EXPECT_ERROR(OpenGguf(gguf([](auto& b) { b.version = 1; })), ErrorCode::kUnsupported,
                     "version 1", "m.gguf");
  OSCAR_EXPECT_ERROR(OpenGguf(gguf([](auto& b) { b.version = 4; })), ErrorCode::kUnsupported,
                     "version 4");
  OSCAR_EXPECT_ERROR(OpenGguf(gguf([](auto& b) { b.version = 0x03000000; })),
                     ErrorCode::kUnsupported, "big-endian");
  OSCAR_EXPECT_ERROR(OpenGguf(gguf([](auto& b) { b.U32("split.count", 3); })),
                     ErrorCode::kUnsupported, "split", "3");
  OSCAR_EXPECT_ERROR(OpenModel(gguf([](auto&) {})), ErrorCode::kFormat, "llama.block_count");
  GgufBuilder other;
  other.Text("general.architecture", "gemma3");
  OSCAR_EXPECT_ERROR(OpenModel(Gguf(other.Finish())), ErrorCode::kUnsupported, "gemma3");
}

TEST(Gguf, DamagedMetadata) {
  const auto gguf = [](const std::function<void(GgufBuilder&)>& change) {
    GgufBuilder builder;
    change(builder);
    return Gguf(builder.Finish());
  };
  const auto refuse = [&](const char* named, const std::function<void(GgufBuilder&)>& change) {
    OSCAR_EXPECT_ERROR(OpenGguf(gguf(change)), ErrorCode::kFormat, named, "m.gguf");
  };
  OSCAR_EXPECT_ERROR(OpenGguf(Gguf({})), ErrorCode::kFormat, "m.gguf");
  OSCAR_EXPECT_ERROR(OpenGguf(Gguf({'P', 'K', 3, 4, 0, 0, 0, 0})), ErrorCode::kFormat, "GGUF");
  refuse("'k'", [](auto& b) { b.Raw("k", 8, Number(UINT64_MAX)); });   // text length
  refuse("'k'", [](auto& b) { b.Raw("k", 13, Number(0)); });           // value type
  refuse("'k'", [](auto& b) { b.Raw("k", 10, Number(UINT64_MAX)); });  // too large
  refuse("'k'", [](auto& b) {
    Bytes array = {8, 0, 0, 0};
    const Bytes count = Number(uint64_t{1} << 60);
    test::Append(array, count);
    b.Raw("k", 9, array);
  });
  refuse("arrays of arrays", [](auto& b) {
    Bytes array = {9, 0, 0, 0};
    const Bytes count = Number(1);
    test::Append(array, count);
    b.Raw("k", 9, array);
  });
  refuse("'twin'", [](auto& b) {
    b.U32("twin", 1);
    b.U32("twin", 1);
  });
  for (const uint32_t alignment : {0U, 24U, UINT32_MAX}) {
    refuse("general.alignment", [&](auto& b) { b.U32("general.alignment", alignment); });
  }
  // Control characters of a hostile name must not reach the terminal.
  refuse("\\x1b", [](auto& b) { b.Raw("a\x1b[2Jb\n", 13, {}); });
}

TEST(Gguf, DamagedTensorTable) {
  const FileTensor a = test::F32Tensor("a", {2, 32}, std::vector<float>(64, 1.0F));
  const FileTensor b = test::F32Tensor("b", {8}, std::vector<float>(8, 1.0F));
  const auto refuse = [&](std::vector<std::string> named,
                          const std::function<void(GgufBuilder&)>& change) {
    GgufBuilder builder;
    change(builder);
    try {
      OpenGguf(Gguf(builder.Finish()));
      ADD_FAILURE() << "accepted: " << named[0];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFormat) << error.what();
      for (const std::string& part : named) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  };
  refuse({"'a'", "twice"}, [&](auto& g) {
    g.Tensor(a);
    g.Tensor(a);
  });
  refuse({"'a'", "'b'", "overlap"}, [&](auto& g) {
    g.Tensor(a);
    g.Tensor(b, 32);
  });
  refuse({"'b'", "multiple of 32"}, [&](auto& g) {
    g.Tensor(a);
    g.Tensor(b, 4);
  });
  refuse({"'a'", "ends at"}, [&](auto& g) { g.Tensor(a, 64); });
  refuse({"'a'", "beyond"}, [&](auto& g) { g.Tensor(a, INT64_MAX - 31); });
  refuse({"'z'", "0 dimensions"}, [&](auto& g) { g.Tensor({"z", "", 0, {}, {}}); });
  refuse({"'z'", "5 dimensions"}, [&](auto& g) { g.Tensor({"z", "", 0, {1, 1, 1, 1, 1}, {}}); });
  refuse({"'z'", "shape"}, [&](auto& g) { g.Tensor({"z", "", 0, {INT64_MAX, INT64_MAX, 3}, {}}); });
  refuse({"'z'", "dimension"}, [&](auto& g) { g.Tensor({"z", "", 0, {-1}, {}}); });
  refuse({"'z'", "Q4_0", "33"}, [&](auto& g) { g.Tensor({"z", "", 2, {33}, Bytes(64)}); });
  refuse({"'z'"}, [&](auto& g) { g.Tensor({"z", "", 0, {int64_t{1} << 61}, {}}); });
}

// Alignment other than the default.
TEST(Gguf, HonoursAlignment) {
  for (const uint32_t alignment : {8U, 128U, 4096U}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.U32("general.alignment", alignment);
    builder.Tensor(test::F32Tensor("a", {3}, {1, 2, 3}));
    builder.Tensor(test::F32Tensor("b", {2}, {4, 5}));
    const GgufFile file = OpenGguf(Gguf(builder.Finish()));
    std::vector<float> values(2);
    file.tensors.ReadRows("b", *file.tensors.Find("b"), 0, 2, values.data());
    EXPECT_EQ(values, (std::vector<float>{4, 5}));
  }
}

}  // namespace
}  // namespace oscar
