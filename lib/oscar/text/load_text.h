// From text files to the token sequences that a model runs on: read, tokenise, render, pack.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/text/dataset.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

struct TextRequest {
  // Documents of several files are interleaved evenly, each file's in its own order, so that any
  // number of tokens holds every file in its share.
  std::vector<std::filesystem::path> files;
  std::string chat_template = "auto";  // only resolved when a document has messages, or not "auto"
  uint64_t seed = 0;                   // shuffles the choices of GPQA questions
  int64_t tokens = 0;                  // tokens wanted in all, at least 1
  int64_t window = 2048;               // tokens of one packed sequence
};

struct LoadedText {
  PackedText packed;
  std::string tokenizer_hash;
  ChatTemplate chat_template = ChatTemplate::kNone;
  int64_t window = 0;  // min(request.window, request.tokens)
};

// Throws what ReadDocuments, TokenizerForModel and ResolveTemplate throw, and Error(kUnsupported)
// when the model names no EOS token to separate documents with.
LoadedText LoadText(const TextRequest& request, const ModelWeights& model);

}  // namespace oscar
