// Refusals, merging against a definition, hostile files.
#include "oscar/text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/text/bpe.h"
#include "oscar/text/tokenizer_spec.h"
#include "support/golden.h"
#include "support/model_files.h"

namespace oscar {
namespace {

using nlohmann::json;

// All 256 bytes (in the byte alphabet) and a few merges.
json SmallTokenizer() {
  json vocab = json::object();
  int id = 0;
  for (int32_t c = 0; c < 324; ++c) {
    const bool printable =
        (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255) || c >= 256;
    std::string text;
    AppendUtf8(c, text);
    if (printable) vocab[text] = id++;
  }
  vocab["th"] = id++;
  vocab["the"] = id++;
  vocab["\xc4\xa0the"] = id++;
  return {
      {"version", "1.0"},
      {"added_tokens", json::array({{{"id", id}, {"content", "<end>"}, {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", json::parse(R"([["t", "h"], ["th", "e"], ["\u0120", "the"]])")}}}};
}

std::unique_ptr<Tokenizer> Make(const json& tokenizer, const std::string& config = "",
                                const std::string& chat_template = "") {
  return MakeTokenizer(ParseTokenizerJson(tokenizer.dump(), config, chat_template, "folder"));
}

TEST(Tokenizer, Small) {
  const auto tokenizer = Make(SmallTokenizer());
  EXPECT_EQ(tokenizer->Encode("the the<end>th"), (std::vector<int32_t>{257, 258, 259, 256}));
  EXPECT_TRUE(tokenizer->Encode("").empty());
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->SpecialId("<end>"), 259);
  OSCAR_EXPECT_ERROR(tokenizer->Encode("ab\xff"), ErrorCode::kFormat, "byte 2");
  // A zero byte is text like any other.
  EXPECT_EQ(tokenizer->Encode(std::string("\0", 1)).size(), 1U);
}

TEST(Tokenizer, UnsupportedComponentsAreRefusedByName) {
  const auto refuse = [](const std::string& path, const json& value, const char* named) {
    json tokenizer = SmallTokenizer();
    tokenizer[json::json_pointer(path)] = value;
    OSCAR_EXPECT_ERROR(Make(tokenizer), ErrorCode::kUnsupported, named, "tokenizer.json");
  };
  refuse("/model/type", "Unigram", "Unigram");
  refuse("/model/byte_fallback", true, "byte_fallback");
  refuse("/model/dropout", 0.1, "dropout");
  refuse("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  refuse("/model/continuing_subword_prefix", "##", "continuing_subword_prefix");
  refuse("/normalizer", {{"type", "Lowercase"}}, "Lowercase");
  refuse("/normalizer",
         {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "NFD"}}}}},
         "several steps");
  refuse("/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace");
  refuse("/pre_tokenizer", nullptr, "ByteLevel");
  refuse("/pre_tokenizer", {{"type", "Digits"}, {"individual_digits", true}}, "ByteLevel");
  refuse("/pre_tokenizer/add_prefix_space", true, "add_prefix_space");
  refuse("/pre_tokenizer",
         {{"type", "Split"}, {"pattern", {{"Regex", "\\w"}}}, {"behavior", "Sideways"}},
         "Sideways");
  refuse("/post_processor", {{"type", "BertProcessing"}}, "BertProcessing");
  refuse("/truncation", {{"max_length", 512}}, "truncation");
  refuse("/padding", {{"strategy", "BatchLongest"}}, "padding");
  refuse("/surprise", 1, "surprise");
}

TEST(Tokenizer, FaultyFiles) {
  const auto refuse = [](const std::string& path, const json& value, const char* named) {
    json tokenizer = SmallTokenizer();
    tokenizer[json::json_pointer(path)] = value;
    OSCAR_EXPECT_ERROR(Make(tokenizer), ErrorCode::kFormat, named);
  };
  refuse("/model/merges/1", {"t", "zz"}, "'zz'");
  refuse("/model/merges/1", {"t", "i"}, "'ti'");
  refuse("/model/merges/1", "t h e", "merge 1");
  refuse("/model/merges/1", "the", "merge 1");
  refuse("/model/merges/1", 3, "merge 1");
  refuse("/model/vocab/th", -1, "'th'");
  refuse("/model/vocab/th", "x", "'th'");
  refuse("/model/vocab/th", 1 << 30, "'th'");
  refuse("/model/vocab", json::object(), "empty");
  refuse("/model/vocab", 3, "vocab");
  refuse("/added_tokens/0/id", 3.5, "<end>");
  refuse("/added_tokens/0", 3, "added token");
  refuse("/added_tokens/0/content", "the", "'the'");
  refuse("/model/unk_token", "<none>", "<none>");
  OSCAR_EXPECT_ERROR(ParseTokenizerJson("{", "", "", "folder"), ErrorCode::kFormat,
                     "JSON: line 1, column");
  OSCAR_EXPECT_ERROR(ParseTokenizerJson("[]", "", "", "folder"), ErrorCode::kFormat, "object");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  OSCAR_EXPECT_ERROR(ParseTokenizerJson("{\"normalizer\":" + deep + "}", "", "", "folder"),
                     ErrorCode::kFormat, "nested");
}

TEST(Tokenizer, ConfigFile) {
  const json tokenizer = SmallTokenizer();
  EXPECT_EQ(Make(tokenizer, R"({"chat_template": "A"})")->chat_template(), "A");
  EXPECT_EQ(Make(tokenizer, R"({"chat_template": "A"})", "B")->chat_template(), "B");
  EXPECT_EQ(Make(tokenizer, R"({"chat_template": [{"name": "tool_use", "template": "T"},
                                                  {"name": "default", "template": "D"}]})")
                ->chat_template(),
            "D");
  const auto more = Make(tokenizer, R"({"added_tokens_decoder": {
      "300": {"content": "<more>", "special": true}, "259": {"content": "<end>"}}})");
  EXPECT_EQ(more->Encode("<more><end>"), (std::vector<int32_t>{300, 259}));
  EXPECT_EQ(more->vocab_size(), 301);
  OSCAR_EXPECT_ERROR(Make(tokenizer, R"({"add_prefix_space": true})"), ErrorCode::kUnsupported,
                     "add_prefix_space", "tokenizer_config.json");
  OSCAR_EXPECT_ERROR(Make(tokenizer, R"({"split_special_tokens": true})"), ErrorCode::kUnsupported,
                     "split_special_tokens");
  OSCAR_EXPECT_ERROR(Make(tokenizer, "{"), ErrorCode::kFormat, "tokenizer_config.json");
}

TEST(Tokenizer, Folders) {
  const auto folder = test::FreshFolder("text-folders");
  OSCAR_EXPECT_ERROR(TokenizerFromFolder(folder), ErrorCode::kIo, "tokenizer.json");
  std::ofstream(folder / "tokenizer.model") << "x";
  OSCAR_EXPECT_ERROR(TokenizerFromFolder(folder), ErrorCode::kUnsupported, "SentencePiece");
  std::ofstream(folder / "tokenizer.json") << SmallTokenizer().dump();
  std::ofstream(folder / "chat_template.jinja") << "J";
  EXPECT_EQ(TokenizerFromFolder(folder)->chat_template(), "J");
}

// The post-processor only adds tokens around a text, which the toolkit does not do.
TEST(Tokenizer, NoBosIsAdded) {
  json tokenizer = SmallTokenizer();
  const std::vector<int32_t> plain = Make(tokenizer)->Encode("the");
  tokenizer["post_processor"] = {
      {"type", "Sequence"},
      {"processors", {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}}}}};
  EXPECT_EQ(Make(tokenizer)->Encode("the"), plain);
}

Value SmallGguf() {
  Value metadata;
  metadata["tokenizer.ggml.model"] = "gpt2";
  metadata["tokenizer.ggml.pre"] = "gpt-2";
  metadata["tokenizer.ggml.tokens"] = Value::Array{"a", "b", "ab", "<x>", "<y>"};
  metadata["tokenizer.ggml.token_type"] = Value::Array{1, 1, 1, 3, 4};
  metadata["tokenizer.ggml.merges"] = Value::Array{"a b"};
  return metadata;
}

TEST(Tokenizer, Gguf) {
  const auto tokenizer = TokenizerFromGguf(SmallGguf());
  EXPECT_EQ(tokenizer->Encode("<x>ab<y>ba"), (std::vector<int32_t>{3, 2, 4, 1, 0}));
  EXPECT_EQ(tokenizer->SpecialId("<y>"), 4);
  const auto with = [](const char* key, Value value) {
    Value metadata = SmallGguf();
    if (value.is_null()) {
      metadata.MutableObject().erase(key);
    } else {
      metadata[key] = std::move(value);
    }
    TokenizerFromGguf(metadata);
  };
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.model", "llama"), ErrorCode::kUnsupported, "'llama'");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.pre", "brandnew"), ErrorCode::kUnsupported, "'brandnew'");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.pre", nullptr), ErrorCode::kUnsupported,
                     "tokenizer.ggml.pre");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.tokens", nullptr), ErrorCode::kFormat,
                     "tokenizer.ggml.tokens");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.tokens", Value::Array{1}), ErrorCode::kFormat,
                     "tokenizer.ggml.token");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.token_type", Value::Array{1}), ErrorCode::kFormat,
                     "token_type");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.merges", Value::Array{"a c"}), ErrorCode::kFormat, "'c'");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.merges", Value::Array{"ab"}), ErrorCode::kFormat,
                     "merge 0");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.tokens", Value::Array{"a", "b", "ab", "a", "<y>"}),
                     ErrorCode::kFormat, "'a'");
  OSCAR_EXPECT_ERROR(with("tokenizer.ggml.tokens", Value::Array{"a", "b", "ab", "\xff", "<y>"}),
                     ErrorCode::kFormat, "token 3");
}

// Merging as its definition says it: scan for the lowest rank, leftmost first, one pair at a time.
std::vector<std::string> NaiveMerge(
    std::vector<std::string> symbols,
    const std::map<std::pair<std::string, std::string>, int>& rank) {
  while (true) {
    int best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = rank.find({symbols[i], symbols[i + 1]});
      if (it != rank.end() && (best < 0 || it->second < best)) {
        best = it->second;
        at = i;
      }
    }
    if (best < 0) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionOnRandomMerges) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    TokenizerSpec spec;
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::map<std::pair<std::string, std::string>, int> rank;
    while (spec.merges.size() < 25) {
      const std::string left = tokens[random.Below(tokens.size())];
      const std::string right = tokens[random.Below(tokens.size())];
      if (rank.contains({left, right})) continue;
      rank[{left, right}] = static_cast<int>(spec.merges.size());
      spec.merges.emplace_back(left, right);
      if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end()) {
        tokens.push_back(left + right);
      }
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      spec.vocabulary.emplace_back(tokens[i], static_cast<int32_t>(i));
    }
    const Bpe bpe(spec);
    Bpe::Scratch scratch;
    for (int n = 0; n < 60; ++n) {
      std::string piece;
      std::vector<std::string> symbols;
      for (uint64_t length = random.Below(40); length > 0; --length) {
        symbols.emplace_back(1, "abc"[random.Below(3)]);
        piece += symbols.back();
      }
      std::vector<int32_t> expected, found;
      for (const std::string& symbol : NaiveMerge(symbols, rank)) {
        expected.push_back(
            static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), symbol) - tokens.begin()));
      }
      // Twice: the second time from what was learned about whole tokens.
      for (int twice = 0; twice < 2; ++twice) {
        found.clear();
        bpe.Encode(piece, scratch, found);
        EXPECT_EQ(found, expected) << piece;
      }
    }
  }
}

TEST(Bpe, ByteAlphabet) {
  std::string bytes;
  EXPECT_TRUE(DecodeByteAlphabet("a\xc4\xa0z", bytes));
  EXPECT_EQ(bytes, "a z");
  EXPECT_TRUE(DecodeByteAlphabet("\xc4\x80", bytes));
  EXPECT_EQ(bytes, std::string("\0", 1));
  EXPECT_TRUE(DecodeByteAlphabet("\xc5\x83", bytes));  // the last of the shifted ones
  EXPECT_EQ(bytes, "\xad");
  EXPECT_FALSE(DecodeByteAlphabet("\xc5\x84", bytes));
  EXPECT_FALSE(DecodeByteAlphabet("a b", bytes));
  EXPECT_FALSE(DecodeByteAlphabet("\xe4\xbd\xa0", bytes));
}

// Whatever is wrong with a file, the answer is an Error or a tokenizer that works.
TEST(Tokenizer, CorruptedFiles) {
  const std::string good = SmallTokenizer().dump();
  int refused = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::string text = good;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n) {
      const size_t at = random.Below(text.size());
      if (random.Below(2) == 0) {
        text[at] = static_cast<char>(random.Next());
      } else {
        text.erase(at, random.Below(20));
      }
    }
    try {
      MakeTokenizer(ParseTokenizerJson(text, "", "", "folder"))->Encode("the th \xc3\xa9<end> 12");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace oscar
