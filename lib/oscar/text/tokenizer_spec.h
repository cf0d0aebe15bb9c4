// What a byte-level BPE tokenizer consists of, as neutral data: read from tokenizer.json or from
// GGUF metadata, turned into a Tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/text/pretokenize.h"
#include "oscar/text/tokenizer.h"
#include "oscar/text/unicode.h"

namespace oscar {

// A token that is cut out of the text as a whole before anything else.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = true;
  bool normalized = false;   // matched in normalised text instead of raw text
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
};

struct TokenizerSpec {
  std::string source;  // file, for messages
  // Texts of the vocabulary in the byte-to-character alphabet, with their ids.
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added;
  Normalization normalization = Normalization::kNone;
  std::vector<SplitRule> rules;
  bool ignore_merges = false;  // a piece that is a token is not split and merged
  std::string unknown_token;   // for bytes without a token; empty: they are left out
  bool fuse_unknown = false;   // a run of such bytes gives one token
  std::string chat_template;
};

// The texts of tokenizer.json, tokenizer_config.json and chat_template.jinja; the last two may be
// empty. Throws Error(kFormat / kUnsupported) naming the component.
TokenizerSpec ParseTokenizerJson(const std::string& tokenizer, const std::string& config,
                                 const std::string& chat_template,
                                 const std::filesystem::path& folder);
TokenizerSpec ParseTokenizerGguf(const Value& metadata);

// Throws Error(kFormat) for merges or special tokens that the vocabulary does not have.
std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerSpec spec);

}  // namespace oscar
