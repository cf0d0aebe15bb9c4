#include "oscar/text/load_text.h"

#include <algorithm>
#include <utility>

#include "oscar/core/error.h"

namespace oscar {
namespace {

// Documents of all files, spread evenly: document i of n stands at (i + 1/2) / n of the text, so
// that any prefix of it holds every file in its share. The order inside a file stays.
std::vector<Document> InterleavedDocuments(const TextRequest& request) {
  struct Placed {
    double place;
    Document document;
  };
  std::vector<Placed> placed;
  for (const std::filesystem::path& file : request.files) {
    std::vector<Document> documents = ReadDocuments(file, request.seed);
    const auto count = static_cast<double>(documents.size());
    for (size_t i = 0; i < documents.size(); ++i) {
      placed.push_back({(static_cast<double>(i) + 0.5) / count, std::move(documents[i])});
    }
  }
  std::ranges::stable_sort(placed, {}, &Placed::place);
  std::vector<Document> all;
  for (Placed& item : placed) all.push_back(std::move(item.document));
  return all;
}

}  // namespace

LoadedText LoadText(const TextRequest& request, const ModelWeights& model) {
  const std::unique_ptr<Tokenizer> tokenizer = TokenizerForModel(model);
  const std::vector<Document> documents = InterleavedDocuments(request);
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
