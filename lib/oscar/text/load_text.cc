#include "oscar/text/load_text.h"

#include <algorithm>
#include <iterator>

#include "oscar/core/error.h"

namespace oscar {

LoadedText LoadText(const TextRequest& request, const ModelWeights& model) {
  const std::unique_ptr<Tokenizer> tokenizer = TokenizerForModel(model);
  std::vector<Document> documents;
  for (const std::filesystem::path& file : request.files) {
    std::vector<Document> more = ReadDocuments(file, request.seed);
    std::move(more.begin(), more.end(), std::back_inserter(documents));
  }
  // Plain text needs no template, so a model with an unknown one can still run on it.
  const bool needed = request.chat_template != "auto" ||
                      std::ranges::any_of(documents, [](const Document& document) {
                        return !document.messages.empty();
                      });
  LoadedText loaded;
  if (needed) loaded.chat_template = ResolveTemplate(request.chat_template, *tokenizer);
  const int64_t eos = model.config().eos_token;
  if (eos < 0) {
    throw Error(ErrorCode::kUnsupported,
                model.path().string() + ": the model names no EOS token to separate documents with",
                "tokenise the text yourself and use --token-ids");
  }
  loaded.tokenizer_hash = tokenizer->hash();
  loaded.window = std::min(request.window, request.tokens);
  loaded.packed = PackDocuments(documents, loaded.chat_template, *tokenizer, eos, loaded.window,
                                request.tokens);
  return loaded;
}

}  // namespace oscar
