#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/value.h"
#include "oscar/text/dataset.h"
#include "oscar/text/lines.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

std::vector<int32_t> EncodeDocument(const Document& document, ChatTemplate t,
                                    const Tokenizer& tokenizer) {
  try {
    return tokenizer.Encode(document.messages.empty() ? document.text
                                                      : RenderChat(t, document.messages, false));
  } catch (const Error& error) {
    throw Error(error.code(), document.where + ": " + error.what(), error.hint());
  }
}

int32_t CheckedId(int64_t id, const std::string& where) {
  if (id < 0 || id > INT32_MAX) {
    throw Error(ErrorCode::kFormat, Message(where, ": ", id, " is no token id"));
  }
  return static_cast<int32_t>(id);
}

// The ids of a JSON list.
std::vector<int32_t> IdsOfList(const Value& list, const std::string& where) {
  std::vector<int32_t> ids;
  for (const Value& item : list.AsArray()) {
    if (!item.is_int()) {
      throw Error(ErrorCode::kFormat,
                  Message(where, ": expected token ids, found ", item.ToJson()));
    }
    ids.push_back(CheckedId(item.AsInt(), where));
  }
  return ids;
}

std::vector<std::vector<int32_t>> IdsOfJson(const std::string& text, const std::string& file) {
  const Value root = Value::FromJson(text, file);
  if (!root.is_array()) throw Error(ErrorCode::kFormat, file + ": expected a list of lists");
  std::vector<std::vector<int32_t>> out;
  for (size_t i = 0; i < root.AsArray().size(); ++i) {
    const Value& item = root.AsArray()[i];
    const std::string where = Message(file, ": sequence ", i + 1);
    if (!item.is_array()) {
      throw Error(ErrorCode::kFormat, Message(where, ": expected a list of token ids, found ",
                                              item.ToJson().substr(0, 40)));
    }
    out.push_back(IdsOfList(item, where));
  }
  return out;
}

// Integers between blanks and commas.
std::vector<int32_t> IdsOfLine(std::string_view line, const std::string& where) {
  std::vector<int32_t> ids;
  const auto separator = [](char c) { return c == ' ' || c == '\t' || c == ','; };
  for (size_t at = 0; at < line.size();) {
    if (separator(line[at])) {
      ++at;
      continue;
    }
    const size_t end = static_cast<size_t>(
        std::find_if(line.begin() + static_cast<std::ptrdiff_t>(at), line.end(), separator) -
        line.begin());
    int64_t id = 0;
    const auto [stop, error] = std::from_chars(line.data() + at, line.data() + end, id);
    if (error != std::errc() || stop != line.data() + end) {
      throw Error(ErrorCode::kFormat,
                  Message(where, ": ", Quoted(line.substr(at, end - at)), " is no token id"));
    }
    ids.push_back(CheckedId(id, where));
    at = end;
  }
  return ids;
}

}  // namespace

PackedText PackDocuments(const std::vector<Document>& documents, ChatTemplate t,
                         const Tokenizer& tokenizer, int64_t eos_token, int64_t window,
                         int64_t max_tokens) {
  if (window < 1 || max_tokens < 1) {
    throw Error(ErrorCode::kUsage,
                Message("cannot pack ", max_tokens, " tokens into windows of ", window));
  }
  PackedText out;
  std::vector<int32_t> all;     // at most max_tokens are kept
  std::vector<int64_t> starts;  // of each document
  for (size_t i = 0; i < documents.size(); ++i) {
    std::vector<int32_t> ids = EncodeDocument(documents[i], t, tokenizer);
    if (i > 0 && eos_token >= 0) ids.insert(ids.begin(), static_cast<int32_t>(eos_token));
    starts.push_back(out.tokens_available + (i > 0 && eos_token >= 0 ? 1 : 0));
    out.tokens_available += static_cast<int64_t>(ids.size());
    const int64_t room = max_tokens - static_cast<int64_t>(all.size());
    const int64_t take = std::min<int64_t>(room, static_cast<int64_t>(ids.size()));
    all.insert(all.end(), ids.begin(), ids.begin() + take);
  }
  if (all.empty()) throw Error(ErrorCode::kData, "the text has no tokens");
  const auto total = static_cast<int64_t>(all.size());
  const int64_t used = total < window ? total : total / window * window;
  for (int64_t begin = 0; begin < used; begin += window) {
    const int64_t end = std::min(begin + window, used);
    out.sequences.emplace_back(all.begin() + begin, all.begin() + end);
  }
  out.documents =
      std::count_if(starts.begin(), starts.end(), [&](int64_t start) { return start < used; });
  return out;
}

std::vector<std::vector<int32_t>> ReadTokenIds(const std::filesystem::path& file) {
  const std::string name = file.string();
  const std::string text = ReadUtf8File(file);
  const size_t first = text.find_first_not_of(" \t\r\n");
  std::vector<std::vector<int32_t>> out;
  if (file.extension() == ".json" || (first != std::string::npos && text[first] == '[')) {
    out = IdsOfJson(text, name);
  } else {
    for (const Line& line : SplitLines(text)) {
      out.push_back(IdsOfLine(line.text, Message(name, ":", line.number)));
    }
  }
  std::erase_if(out, [](const std::vector<int32_t>& ids) { return ids.empty(); });
  if (out.empty()) throw Error(ErrorCode::kData, name + " holds no token ids");
  return out;
}

}  // namespace oscar
