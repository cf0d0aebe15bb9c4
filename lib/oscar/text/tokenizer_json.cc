#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/json_scan.h"
#include "oscar/text/tokenizer_spec.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// One file being read; names it in every complaint.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  [[noreturn]] void Wrong(const std::string& what) const {
    throw Error(ErrorCode::kFormat, file_ + ": " + what);
  }
  [[noreturn]] void Unsupported(const std::string& what) const {
    throw Error(ErrorCode::kUnsupported, file_ + ": " + what + " is not supported",
                "only byte-level BPE tokenizers are; give token ids instead of text");
  }

  json Parse(const std::string& text) const {
    constexpr int kDeepest = 64;  // what reads nested steps recurses
    const JsonScan scan = ScanJson(text, kDeepest);
    if (scan.too_deep) Wrong("it is nested too deeply");
    if (scan.fault) Wrong("not valid JSON: " + *scan.fault);
    json parsed = json::parse(text);
    if (!parsed.is_object()) Wrong("expected a JSON object");
    return parsed;
  }

  // Members; `where` names the object in messages.
  const json* Find(const json& object, const char* member) const {
    const auto it = object.find(member);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  const json& Object(const json& object, const char* member, const std::string& where) const {
    const json* value = Find(object, member);
    if (value == nullptr || !value->is_object()) {
      Wrong(Message(where, " has no object '", member, "'"));
    }
    return *value;
  }
  const json& Array(const json& object, const char* member, const std::string& where) const {
    const json* value = Find(object, member);
    if (value == nullptr || !value->is_array()) {
      Wrong(Message(where, " has no list '", member, "'"));
    }
    return *value;
  }
  std::string Text(const json& object, const char* member, const std::string& where) const {
    const json* value = Find(object, member);
    if (value == nullptr || !value->is_string()) {
      Wrong(Message(where, " has no text '", member, "'"));
    }
    return value->get<std::string>();
  }
  bool Bool(const json& object, const char* member, bool fallback, const std::string& where) const {
    const json* value = Find(object, member);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Wrong(Message(where, ": '", member, "' is not true or false"));
    return value->get<bool>();
  }
  int32_t Id(const json& value, const std::string& token) const {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
      Wrong("token " + Quoted(token) + " has no usable id");
    }
    return value.get<int32_t>();
  }

 private:
  std::string file_;
};

Normalization ParseNormalizer(const Reader& reader, const json& node) {
  if (!node.is_object()) reader.Wrong("the normalizer is no object");
  const std::string type = reader.Text(node, "type", "the normalizer");
  if (type == "NFC") return Normalization::kNfc;
  if (type == "NFD") return Normalization::kNfd;
  if (type == "Sequence") {
    const json& list = reader.Array(node, "normalizers", "the normalizer");
    if (list.empty()) return Normalization::kNone;
    if (list.size() == 1) return ParseNormalizer(reader, list[0]);
    reader.Unsupported("a normalizer of several steps");
  }
  reader.Unsupported("normalizer " + Quoted(type));
}

SplitBehavior ParseBehavior(const Reader& reader, const std::string& name) {
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  reader.Unsupported("split behavior " + Quoted(name));
}

// An expression that matches a text literally.
std::string Literally(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) out += '\\';
    out += c;
  }
  return out;
}

SplitRule ParseSplit(const Reader& reader, const json& node) {
  SplitRule rule;
  const json& pattern = reader.Object(node, "pattern", "the Split step");
  const json* literal = reader.Find(pattern, "String");
  rule.pattern = literal != nullptr
                     ? Literally(reader.Text(pattern, "String", "the Split step's pattern"))
                     : reader.Text(pattern, "Regex", "the Split step's pattern");
  rule.behavior = ParseBehavior(reader, reader.Text(node, "behavior", "the Split step"));
  rule.invert = reader.Bool(node, "invert", false, "the Split step");
  return rule;
}

// Appends the rules of one step. Returns whether it was the byte-level step, which comes last.
bool ParsePreTokenizer(const Reader& reader, const json& node, std::vector<SplitRule>& rules) {
  if (!node.is_object()) reader.Wrong("a step of the pre_tokenizer is no object");
  const std::string type = reader.Text(node, "type", "the pre_tokenizer");
  if (type == "Sequence") {
    bool done = false;
    for (const json& step : reader.Array(node, "pretokenizers", "the pre_tokenizer")) {
      if (done) reader.Unsupported("a pre_tokenizer step after ByteLevel");
      done = ParsePreTokenizer(reader, step, rules);
    }
    return done;
  }
  if (type == "Split") {
    rules.push_back(ParseSplit(reader, node));
    return false;
  }
  if (type == "Digits") {
    SplitRule rule;
    rule.kind = reader.Bool(node, "individual_digits", false, "the Digits step")
                    ? SplitRule::Kind::kIndividualDigits
                    : SplitRule::Kind::kDigits;
    rules.push_back(std::move(rule));
    return false;
  }
  if (type == "ByteLevel") {
    if (reader.Bool(node, "add_prefix_space", true, "the ByteLevel step")) {
      reader.Unsupported("ByteLevel with add_prefix_space");
    }
    if (reader.Bool(node, "use_regex", true, "the ByteLevel step")) {
      rules.push_back({SplitRule::Kind::kPattern, kGpt2Pattern, SplitBehavior::kIsolated, false});
    }
    return true;
  }
  reader.Unsupported("pre_tokenizer " + Quoted(type));
}

// Only what adds tokens around a text, which is not done here: see docs/formats/tokenizers.md.
void CheckPostProcessor(const Reader& reader, const json& node) {
  if (!node.is_object()) reader.Wrong("the post_processor is no object");
  const std::string type = reader.Text(node, "type", "the post_processor");
  if (type == "Sequence") {
    for (const json& step : reader.Array(node, "processors", "the post_processor")) {
      CheckPostProcessor(reader, step);
    }
  } else if (type != "ByteLevel" && type != "TemplateProcessing") {
    reader.Unsupported("post_processor " + Quoted(type));
  }
}

void ParseMerges(const Reader& reader, const json& model, TokenizerSpec& spec) {
  const json& merges = reader.Array(model, "merges", "the model");
  spec.merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const json& merge = merges[rank];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos) {
      reader.Wrong(Message("merge ", rank, " is no pair of tokens"));
    }
    spec.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
}

void ParseModel(const Reader& reader, const json& model, TokenizerSpec& spec) {
  const json* type = reader.Find(model, "type");
  if (type != nullptr && *type != "BPE") {
    reader.Unsupported("tokenizer model " + (type->is_string() ? Quoted(type->get<std::string>())
                                                               : std::string("without a name")));
  }
  if (reader.Bool(model, "byte_fallback", false, "the model")) {
    reader.Unsupported("BPE with byte_fallback");
  }
  const json* dropout = reader.Find(model, "dropout");
  if (dropout != nullptr && *dropout != 0.0) reader.Unsupported("BPE with dropout");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json* value = reader.Find(model, affix);
    if (value != nullptr && *value != "") reader.Unsupported(Message("BPE with ", affix));
  }
  spec.ignore_merges = reader.Bool(model, "ignore_merges", false, "the model");
  spec.fuse_unknown = reader.Bool(model, "fuse_unk", false, "the model");
  if (reader.Find(model, "unk_token") != nullptr) {
    spec.unknown_token = reader.Text(model, "unk_token", "the model");
  }
  const json& vocabulary = reader.Object(model, "vocab", "the model");
  spec.vocabulary.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    spec.vocabulary.emplace_back(token, reader.Id(id, token));
  }
  ParseMerges(reader, model, spec);
}

AddedToken ParseAddedToken(const Reader& reader, const json& node, const json& id) {
  if (!node.is_object()) reader.Wrong("an added token is no object");
  AddedToken token;
  token.content = reader.Text(node, "content", "an added token");
  const std::string where = "added token " + Quoted(token.content);
  token.id = reader.Id(id, token.content);
  token.special = reader.Bool(node, "special", false, where);
  token.normalized = reader.Bool(node, "normalized", !token.special, where);
  token.single_word = reader.Bool(node, "single_word", false, where);
  token.lstrip = reader.Bool(node, "lstrip", false, where);
  token.rstrip = reader.Bool(node, "rstrip", false, where);
  return token;
}

void ParseMain(const Reader& reader, const json& root, TokenizerSpec& spec) {
  constexpr std::string_view kKnown[] = {"version",        "truncation", "padding",
                                         "added_tokens",   "normalizer", "pre_tokenizer",
                                         "post_processor", "decoder",    "model"};
  for (const auto& [key, value] : root.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      reader.Unsupported("the member " + Quoted(key));
    }
  }
  for (const char* member : {"truncation", "padding"}) {
    if (reader.Find(root, member) != nullptr) reader.Unsupported(member);
  }
  if (const json* node = reader.Find(root, "normalizer"); node != nullptr) {
    spec.normalization = ParseNormalizer(reader, *node);
  }
  const json* pre_tokenizer = reader.Find(root, "pre_tokenizer");
  if (pre_tokenizer == nullptr || !ParsePreTokenizer(reader, *pre_tokenizer, spec.rules)) {
    reader.Unsupported("a pre_tokenizer without ByteLevel");
  }
  if (const json* node = reader.Find(root, "post_processor"); node != nullptr) {
    CheckPostProcessor(reader, *node);
  }
  ParseModel(reader, reader.Object(root, "model", "the file"), spec);
  if (reader.Find(root, "added_tokens") == nullptr) return;
  for (const json& node : reader.Array(root, "added_tokens", "the file")) {
    if (!node.is_object() || node.find("id") == node.end())
      reader.Wrong("an added token has no id");
    spec.added.push_back(ParseAddedToken(reader, node, node["id"]));
  }
}

// The template itself, or the one called "default" of a list.
std::string ParseChatTemplate(const Reader& reader, const json& config) {
  const json* node = reader.Find(config, "chat_template");
  if (node == nullptr) return "";
  if (node->is_string()) return node->get<std::string>();
  if (!node->is_array()) reader.Wrong("'chat_template' is neither a text nor a list");
  for (const json& entry : *node) {
    if (entry.is_object() && entry.contains("name") && entry["name"] == "default") {
      return reader.Text(entry, "template", "a chat template");
    }
  }
  return "";
}

// tokenizer_config.json may add tokens that tokenizer.json does not have.
void ParseConfig(const Reader& reader, const json& config, TokenizerSpec& spec) {
  if (reader.Bool(config, "add_prefix_space", false, "the file")) {
    reader.Unsupported("add_prefix_space");
  }
  if (reader.Bool(config, "split_special_tokens", false, "the file")) {
    reader.Unsupported("split_special_tokens");
  }
  spec.chat_template = ParseChatTemplate(reader, config);
  const json* decoder = reader.Find(config, "added_tokens_decoder");
  if (decoder == nullptr) return;
  if (!decoder->is_object()) reader.Wrong("'added_tokens_decoder' is no object");
  std::set<std::string> known;
  for (const AddedToken& token : spec.added) known.insert(token.content);
  for (const auto& [id, node] : decoder->items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
      reader.Wrong("'added_tokens_decoder' has the id " + Quoted(id));
    }
    const AddedToken token = ParseAddedToken(reader, node, json(std::stoi(id)));
    if (!known.contains(token.content)) spec.added.push_back(token);
  }
}

}  // namespace

TokenizerSpec ParseTokenizerJson(const std::string& tokenizer, const std::string& config,
                                 const std::string& chat_template, const fs::path& folder) {
  TokenizerSpec spec;
  const Reader reader((folder / "tokenizer.json").string());
  spec.source = reader.file();
  ParseMain(reader, reader.Parse(tokenizer), spec);
  if (!config.empty()) {
    const Reader config_reader((folder / "tokenizer_config.json").string());
    ParseConfig(config_reader, config_reader.Parse(config), spec);
  }
  // The newer place of the template wins, as in transformers.
  if (!chat_template.empty()) spec.chat_template = chat_template;
  return spec;
}

}  // namespace oscar
