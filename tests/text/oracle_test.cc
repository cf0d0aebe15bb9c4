// Token ids and chat renderings against the reference library, for every string of every tokenizer
// of the oracle, from tokenizer.json and, where the model is there, from its GGUF file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "oscar/core/files.h"
#include "oscar/text/dataset.h"
#include "oscar/text/lines.h"
#include "oscar/text/tokenizer.h"
#include "oscar/weights/model_weights.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

std::vector<Value> ReadLines(const fs::path& file) {
  const std::string text = ReadTextFile(file);
  std::vector<Value> out;
  for (const Line& line : SplitLines(text))
    out.push_back(Value::FromJson(line.text, file.string()));
  return out;
}

std::vector<int32_t> Ids(const Value& list) {
  std::vector<int32_t> out;
  for (const Value& item : list.AsArray()) out.push_back(static_cast<int32_t>(item.AsInt()));
  return out;
}

// Sub-folders of the oracle's tokenizers that hold this file.
std::vector<fs::path> FoldersWith(const char* file) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(test::ModelOracle() / "tokenizer")) {
    if (fs::exists(entry.path() / file)) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

int ExpectStrings(const Tokenizer& tokenizer, const fs::path& strings) {
  int cases = 0;
  for (const Value& line : ReadLines(strings)) {
    EXPECT_EQ(tokenizer.Encode(line.At("text").AsString()), Ids(line.At("ids")))
        << strings << ": " << line.At("text").ToJson();
    ++cases;
  }
  return cases;
}

TEST(TokenizerOracle, StringsFromTokenizerJson) {
  int cases = 0;
  for (const fs::path& folder : FoldersWith("strings.jsonl")) {
    if (!fs::exists(folder / "tokenizer.json")) continue;
    cases += ExpectStrings(*TokenizerFromFolder(folder), folder / "strings.jsonl");
  }
  EXPECT_GT(cases, 0);
}

// A folder X_string_merges is the tokenizer X with its merges in the older form: same ids.
TEST(TokenizerOracle, OlderFormOfMerges) {
  int cases = 0;
  for (const fs::path& folder : FoldersWith("tokenizer.json")) {
    const std::string name = folder.filename().string();
    const std::string suffix = "_string_merges";
    if (!name.ends_with(suffix)) continue;
    const fs::path twin = folder.parent_path() / name.substr(0, name.size() - suffix.size());
    const auto tokenizer = TokenizerFromFolder(folder);
    EXPECT_EQ(tokenizer->hash(), TokenizerFromFolder(twin)->hash());
    cases += ExpectStrings(*tokenizer, twin / "strings.jsonl");
  }
  EXPECT_GT(cases, 0);
}

TEST(TokenizerOracle, RealGguf) {
  const fs::path gguf = test::SmolLm2Gguf();
  if (gguf.empty()) GTEST_SKIP() << "the model's GGUF file has not been fetched";
  const fs::path folder = test::ModelOracle() / "tokenizer" / "smollm2";
  const auto tokenizer = TokenizerForModel(*OpenModel(gguf));
  EXPECT_GT(ExpectStrings(*tokenizer, folder / "strings.jsonl"), 0);
  EXPECT_EQ(tokenizer->hash(), TokenizerFromFolder(folder)->hash());
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_EQ(tokenizer->SpecialId("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer->SpecialId("the"), -1);
  EXPECT_EQ(ResolveTemplate("auto", *tokenizer), ChatTemplate::kSmollm2);
}

TEST(TokenizerOracle, ChatRenderings) {
  int cases = 0;
  for (const fs::path& folder : FoldersWith("chat.jsonl")) {
    const auto tokenizer = TokenizerFromFolder(folder);
    const ChatTemplate t = ResolveTemplate("auto", *tokenizer);
    EXPECT_NE(t, ChatTemplate::kNone) << folder;
    for (const Value& line : ReadLines(folder / "chat.jsonl")) {
      std::vector<ChatMessage> messages;
      for (const Value& message : line.At("messages").AsArray()) {
        messages.push_back({message.At("role").AsString(), message.At("content").AsString()});
      }
      const std::string text = RenderChat(t, messages, line.At("add_generation_prompt").AsBool());
      EXPECT_EQ(text, line.At("text").AsString());
      EXPECT_EQ(tokenizer->Encode(text), Ids(line.At("ids"))) << text;
      ++cases;
    }
  }
  EXPECT_GT(cases, 0);
}

// The tiny models carry tokenizers of the same family; their templates are plain chatml.
TEST(TokenizerOracle, TinyModelsHaveTokenizers) {
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(test::ModelOracle() / "tiny")) {
    if (!fs::exists(entry.path() / "tokenizer.json")) continue;
    const auto tokenizer = TokenizerFromFolder(entry.path());
    EXPECT_EQ(ResolveTemplate("auto", *tokenizer), ChatTemplate::kChatml) << entry.path();
    EXPECT_GT(tokenizer->vocab_size(), 256);
    ++cases;
  }
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace oscar
