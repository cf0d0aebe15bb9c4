#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/text/tokenizer_spec.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

// How a value of tokenizer.ggml.pre cuts text. The expressions are those of the published
// tokenizers that the converters recognise by that name.
struct PreRow {
  std::string_view name;
  Normalization normalization;
  bool individual_digits;  // first
  std::vector<const char*> patterns;
  bool ignore_merges;
};

constexpr char kLlama3Pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr char kQwen2Pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr char kTekkenPattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const std::vector<PreRow>& PreRows() {
  static const std::vector<PreRow> rows = {
      {"smollm", Normalization::kNone, true, {kGpt2Pattern}, false},
      {"gpt-2", Normalization::kNone, false, {kGpt2Pattern}, false},
      {"llama-bpe", Normalization::kNone, false, {kLlama3Pattern}, true},
      {"llama3", Normalization::kNone, false, {kLlama3Pattern}, true},
      {"llama-v3", Normalization::kNone, false, {kLlama3Pattern}, true},
      {"qwen2", Normalization::kNfc, false, {kQwen2Pattern}, false},
      {"tekken", Normalization::kNone, false, {kTekkenPattern}, true},
      // What llama.cpp does with files whose converter did not know the tokenizer.
      {"default",
       Normalization::kNone,
       false,
       {"[\\p{P}\\$\\+<=>\\^~\\|]+", kGpt2Pattern, "\\p{N}+", "[0-9][0-9][0-9]"},
       false},
  };
  return rows;
}

[[noreturn]] void Wrong(const std::string& what) {
  throw Error(ErrorCode::kFormat, "GGUF metadata: " + what);
}

const Value& Require(const Value& metadata, const std::string& key) {
  const Value* value = metadata.Find(key);
  if (value == nullptr) Wrong("the key " + Quoted(key) + " is missing");
  return *value;
}

const Value::Array& List(const Value& metadata, const std::string& key) {
  const Value& value = Require(metadata, key);
  if (!value.is_array()) Wrong("the key " + Quoted(key) + " is no list");
  return value.AsArray();
}

std::string Text(const Value& metadata, const std::string& key) {
  const Value& value = Require(metadata, key);
  if (!value.is_string()) Wrong("the key " + Quoted(key) + " is no text");
  return value.AsString();
}

void ApplyPre(const std::string& name, TokenizerSpec& spec) {
  std::string known;
  for (const PreRow& row : PreRows()) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (row.name != name) continue;
    spec.normalization = row.normalization;
    spec.ignore_merges = row.ignore_merges;
    if (row.individual_digits) {
      SplitRule digits;
      digits.kind = SplitRule::Kind::kIndividualDigits;
      spec.rules.push_back(digits);
    }
    for (const char* pattern : row.patterns) {
      spec.rules.push_back({SplitRule::Kind::kPattern, pattern, SplitBehavior::kIsolated, false});
    }
    return;
  }
  throw Error(ErrorCode::kUnsupported,
              Message("GGUF metadata: tokenizer.ggml.pre ", Quoted(name), " is not supported"),
              "supported: " + known + "; give token ids instead of text");
}

void ParseTokens(const Value& metadata, TokenizerSpec& spec) {
  // Token types: 3 control, 4 user-defined. Both are cut out of the text as whole tokens.
  constexpr int64_t kControl = 3, kUserDefined = 4;
  const Value::Array& tokens = List(metadata, "tokenizer.ggml.tokens");
  const Value* types = metadata.Find("tokenizer.ggml.token_type");
  if (types != nullptr && (!types->is_array() || types->AsArray().size() != tokens.size())) {
    Wrong("tokenizer.ggml.token_type does not have one entry per token");
  }
  spec.vocabulary.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].is_string()) Wrong("tokenizer.ggml.tokens does not hold texts");
    const auto id = static_cast<int32_t>(i);
    spec.vocabulary.emplace_back(tokens[i].AsString(), id);
    if (types == nullptr) continue;
    const Value& type = types->AsArray()[i];
    if (!type.is_int()) Wrong("tokenizer.ggml.token_type does not hold integers");
    if (type.AsInt() == kControl || type.AsInt() == kUserDefined) {
      AddedToken token;
      token.id = id;
      token.content = tokens[i].AsString();
      token.special = type.AsInt() == kControl;
      spec.added.push_back(std::move(token));
    }
  }
}

}  // namespace

TokenizerSpec ParseTokenizerGguf(const Value& metadata) {
  TokenizerSpec spec;
  spec.source = "GGUF metadata";
  const std::string model = Text(metadata, "tokenizer.ggml.model");
  if (model != "gpt2") {
    throw Error(ErrorCode::kUnsupported,
                Message("GGUF metadata: tokenizer.ggml.model ", Quoted(model), " is not supported"),
                "only gpt2 (byte-level BPE) is; give token ids instead of text");
  }
  if (metadata.Find("tokenizer.ggml.pre") == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "GGUF metadata: tokenizer.ggml.pre is missing, so the pre-tokenizer is unknown",
                "convert the model again with a current converter");
  }
  ApplyPre(Text(metadata, "tokenizer.ggml.pre"), spec);
  ParseTokens(metadata, spec);
  const Value::Array& merges = List(metadata, "tokenizer.ggml.merges");
  spec.merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string text = merges[rank].is_string() ? merges[rank].AsString() : "";
    const size_t space = text.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos) {
      Wrong(Message("merge ", rank, " is no pair of tokens: ", Quoted(text)));
    }
    spec.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  if (metadata.Find("tokenizer.chat_template") != nullptr) {
    spec.chat_template = Text(metadata, "tokenizer.chat_template");
  }
  return spec;
}

}  // namespace oscar
