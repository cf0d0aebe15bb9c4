#include "oscar/text/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/text/added_tokens.h"
#include "oscar/text/bpe.h"
#include "oscar/text/tokenizer_spec.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Feeds texts to a hash so that their borders count.
class Fields {
 public:
  void Add(std::string_view text) {
    const std::string length = std::to_string(text.size()) + ":";
    hash_.Update(length.data(), length.size());
    hash_.Update(text.data(), text.size());
  }
  void Add(int64_t number) { Add(std::to_string(number)); }
  std::string Hex() { return hash_.Hex(); }

 private:
  Sha256 hash_;
};

// The same for a tokenizer.json and a GGUF file of one tokenizer: added tokens count as part of
// the vocabulary whether the file lists them there or apart.
std::string HashSpec(const TokenizerSpec& spec) {
  std::vector<std::pair<int32_t, std::string_view>> tokens;
  for (const auto& [text, id] : spec.vocabulary) tokens.emplace_back(id, text);
  for (const AddedToken& token : spec.added) tokens.emplace_back(token.id, token.content);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  std::vector<AddedToken> added = spec.added;
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  Fields fields;
  fields.Add(static_cast<int64_t>(tokens.size()));
  for (const auto& [id, text] : tokens) {
    fields.Add(id);
    fields.Add(text);
  }
  fields.Add(static_cast<int64_t>(spec.merges.size()));
  for (const auto& [left, right] : spec.merges) {
    fields.Add(left);
    fields.Add(right);
  }
  for (const AddedToken& t : added) {
    fields.Add(t.id);
    fields.Add(t.content);
    fields.Add((t.normalized ? 1 : 0) + (t.single_word ? 2 : 0) + (t.lstrip ? 4 : 0) +
               (t.rstrip ? 8 : 0));
  }
  fields.Add(static_cast<int64_t>(spec.normalization));
  for (const SplitRule& rule : spec.rules) fields.Add(rule.Canonical());
  fields.Add(spec.ignore_merges ? 1 : 0);
  fields.Add(spec.unknown_token);
  fields.Add(spec.fuse_unknown && !spec.unknown_token.empty() ? 1 : 0);
  return fields.Hex();
}

// Tokens with the given value of `normalized`.
std::vector<AddedToken> Select(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) out.push_back(token);
  }
  return out;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerSpec spec)
      : hash_(HashSpec(spec)),
        chat_template_(std::move(spec.chat_template)),
        normalization_(spec.normalization),
        raw_tokens_(Select(spec.added, false), Normalization::kNone),
        normalized_tokens_(Select(spec.added, true), spec.normalization),
        has_normalized_(!Select(spec.added, true).empty()),
        bpe_(spec),
        pre_tokenizer_(std::move(spec.rules)) {
    for (const auto& [text, id] : spec.vocabulary) vocab_size_ = std::max<int64_t>(vocab_size_, id);
    for (const AddedToken& token : spec.added) {
      vocab_size_ = std::max<int64_t>(vocab_size_, token.id);
      special_ids_.emplace(token.content, token.id);
    }
    ++vocab_size_;
  }

  std::vector<int32_t> Encode(std::string_view text) const override {
    const size_t bad = FindInvalidUtf8(text);
    if (bad != std::string_view::npos) {
      throw Error(ErrorCode::kFormat, Message("the text is not valid UTF-8 at byte ", bad));
    }
    std::vector<int32_t> out;
    out.reserve(text.size() / 3);
    Bpe::Scratch scratch;
    for (const Stretch& stretch : raw_tokens_.Cut(text)) {
      if (stretch.id >= 0) {
        out.push_back(stretch.id);
      } else {
        EncodeText(stretch.span.Of(text), scratch, out);
      }
    }
    return out;
  }

  int64_t vocab_size() const override { return vocab_size_; }
  std::string hash() const override { return hash_; }
  const std::string& chat_template() const override { return chat_template_; }
  int32_t SpecialId(std::string_view token) const override {
    const auto it = special_ids_.find(std::string(token));
    return it == special_ids_.end() ? -1 : it->second;
  }

 private:
  // Text between the tokens that are matched in raw text.
  void EncodeText(std::string_view raw, Bpe::Scratch& scratch, std::vector<int32_t>& out) const {
    std::string buffer;
    std::string_view text = raw;
    if (normalization_ != Normalization::kNone) {
      buffer = Normalize(normalization_, raw);
      text = buffer;
    }
    if (!has_normalized_) return EncodePieces(text, scratch, out);
    for (const Stretch& stretch : normalized_tokens_.Cut(text)) {
      if (stretch.id >= 0) {
        out.push_back(stretch.id);
      } else {
        EncodePieces(stretch.span.Of(text), scratch, out);
      }
    }
  }

  void EncodePieces(std::string_view text, Bpe::Scratch& scratch, std::vector<int32_t>& out) const {
    for (const Span& piece : pre_tokenizer_.Split(text)) {
      bpe_.Encode(piece.Of(text), scratch, out);
    }
  }

  std::string hash_;
  std::string chat_template_;
  Normalization normalization_;
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  bool has_normalized_;
  Bpe bpe_;
  PreTokenizer pre_tokenizer_;
  int64_t vocab_size_ = 0;
  std::unordered_map<std::string, int32_t> special_ids_;
};

// Ids must be usable as indices, texts unique and well-formed.
void CheckSpec(const TokenizerSpec& spec) {
  constexpr int32_t kLargestId = 1 << 24;
  std::unordered_map<std::string_view, int32_t> ids;
  const auto check = [&](const std::string& text, int32_t id) {
    if (FindInvalidUtf8(text) != std::string_view::npos) {
      throw Error(ErrorCode::kFormat, Message(spec.source, ": token ", id, " is not valid UTF-8"));
    }
    if (id < 0 || id > kLargestId) {
      throw Error(ErrorCode::kFormat,
                  Message(spec.source, ": token ", Quoted(text), " has the impossible id ", id));
    }
    const auto [it, inserted] = ids.emplace(text, id);
    if (!inserted && it->second != id) {
      throw Error(ErrorCode::kFormat, Message(spec.source, ": token ", Quoted(text),
                                              " has the ids ", it->second, " and ", id));
    }
  };
  if (spec.vocabulary.empty()) {
    throw Error(ErrorCode::kFormat, spec.source + ": the vocabulary is empty");
  }
  for (const auto& [text, id] : spec.vocabulary) check(text, id);
  for (const AddedToken& token : spec.added) check(token.content, token.id);
}

std::string TextIfThere(const fs::path& path) {
  return fs::exists(path) ? ReadTextFile(path) : std::string();
}

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerSpec spec) {
  CheckSpec(spec);
  return std::make_unique<BpeTokenizer>(std::move(spec));
}

std::unique_ptr<Tokenizer> TokenizerFromFolder(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  if (!fs::exists(file)) {
    const bool pieces = fs::exists(folder / "tokenizer.model");
    throw Error(pieces ? ErrorCode::kUnsupported : ErrorCode::kIo,
                folder.string() +
                    (pieces ? " has a SentencePiece tokenizer.model but no" : " has no") +
                    " tokenizer.json",
                "save the tokenizer with transformers, or give token ids instead of text");
  }
  return MakeTokenizer(ParseTokenizerJson(ReadTextFile(file),
                                          TextIfThere(folder / "tokenizer_config.json"),
                                          TextIfThere(folder / "chat_template.jinja"), folder));
}

std::unique_ptr<Tokenizer> TokenizerFromGguf(const Value& metadata) {
  return MakeTokenizer(ParseTokenizerGguf(metadata));
}

std::unique_ptr<Tokenizer> TokenizerForModel(const ModelWeights& model) {
  const Value* metadata = model.gguf_metadata();
  return metadata != nullptr ? TokenizerFromGguf(*metadata) : TokenizerFromFolder(model.path());
}

}  // namespace oscar
