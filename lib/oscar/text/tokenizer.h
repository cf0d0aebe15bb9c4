// Byte-level BPE tokenizers, from tokenizer.json or from GGUF metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Token ids of UTF-8 text; special tokens inside the text are matched as whole tokens; no BOS or
  // EOS is added. Throws Error(kFormat) with the byte offset for invalid UTF-8.
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  virtual int64_t vocab_size() const = 0;
  // Id of a special token by its text, or -1.
  virtual int32_t SpecialId(std::string_view token) const = 0;
  // SHA-256 over vocabulary, merges, special tokens and rules.
  virtual std::string hash() const = 0;
  // The model's own chat template text, empty when there is none.
  virtual const std::string& chat_template() const = 0;
};

// From a folder with tokenizer.json (and tokenizer_config.json / chat_template.jinja when there).
std::unique_ptr<Tokenizer> TokenizerFromFolder(const std::filesystem::path& folder);
// From GGUF metadata (keys tokenizer.ggml.*).
std::unique_ptr<Tokenizer> TokenizerFromGguf(const Value& metadata);
// Whichever the model has. Throws Error(kUnsupported) naming the tokenizer model or rule that is
// not supported.
std::unique_ptr<Tokenizer> TokenizerForModel(const ModelWeights& model);

}  // namespace oscar
