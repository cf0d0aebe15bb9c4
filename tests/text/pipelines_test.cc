// Small tokenizers with every supported component against the reference library
// (tests/golden/text/make.py), from tokenizer.json and as GGUF metadata.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "oscar/core/files.h"
#include "oscar/core/value.h"
#include "oscar/text/tokenizer.h"
#include "oscar/text/tokenizer_spec.h"
#include "support/golden.h"

namespace oscar {
namespace {

Value LoadPipelines() {
  const auto path = std::filesystem::path(OSCAR_SOURCE_DIR) / "tests/golden/text/pipelines.json";
  return Value::FromJson(ReadTextFile(path), path.string());
}

void ExpectCases(const Tokenizer& tokenizer, const Value& pipeline, bool with_added) {
  for (const Value& c : pipeline.At("cases").AsArray()) {
    const std::string& text = c.At("text").AsString();
    if (!with_added && text.find('<') != std::string::npos) continue;
    if (!with_added && text.find("tok") != std::string::npos) continue;
    std::vector<int32_t> expected;
    for (const Value& id : c.At("ids").AsArray()) {
      expected.push_back(static_cast<int32_t>(id.AsInt()));
    }
    EXPECT_EQ(tokenizer.Encode(text), expected) << c.At("text").ToJson();
  }
}

TEST(Pipelines, TokenizerJson) {
  const Value pipelines = LoadPipelines();
  ASSERT_GT(pipelines.AsArray().size(), 10U);
  for (const Value& pipeline : pipelines.AsArray()) {
    SCOPED_TRACE(pipeline.At("name").AsString());
    const auto tokenizer =
        MakeTokenizer(ParseTokenizerJson(pipeline.At("tokenizer").ToJson(), "", "", "folder"));
    ExpectCases(*tokenizer, pipeline, true);
  }
}

// The same vocabulary as GGUF metadata; the added tokens stay out, since GGUF knows fewer kinds.
TEST(Pipelines, GgufRules) {
  int cases = 0;
  const Value pipelines = LoadPipelines();
  for (const Value& pipeline : pipelines.AsArray()) {
    if (pipeline.At("pre").is_null()) continue;
    SCOPED_TRACE(pipeline.At("name").AsString());
    const Value& model = pipeline.At("tokenizer").At("model");
    std::vector<std::pair<int64_t, std::string>> tokens;
    for (const auto& [text, id] : model.At("vocab").AsObject())
      tokens.emplace_back(id.AsInt(), text);
    std::sort(tokens.begin(), tokens.end());
    Value::Array texts, merges;
    for (const auto& [id, text] : tokens) {
      ASSERT_EQ(id, static_cast<int64_t>(texts.size())) << "ids must be dense";
      texts.emplace_back(text);
    }
    for (const Value& merge : model.At("merges").AsArray()) {
      merges.emplace_back(merge.AsArray()[0].AsString() + " " + merge.AsArray()[1].AsString());
    }
    Value metadata;
    metadata["tokenizer.ggml.model"] = "gpt2";
    metadata["tokenizer.ggml.pre"] = pipeline.At("pre");
    metadata["tokenizer.ggml.tokens"] = std::move(texts);
    metadata["tokenizer.ggml.merges"] = std::move(merges);
    ExpectCases(*TokenizerFromGguf(metadata), pipeline, false);
    ++cases;
  }
  EXPECT_GE(cases, 5);
}

}  // namespace
}  // namespace oscar
