#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/value.h"
#include "oscar/text/csv.h"
#include "oscar/text/dataset.h"
#include "oscar/text/lines.h"
#include "oscar/text/questions.h"
#include "oscar/text/unicode.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Without blank lines at both ends.
std::string_view TrimLines(std::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n') {
      begin = at + 1;
    } else if (text[at] != ' ' && text[at] != '\t') {
      break;
    }
  }
  const size_t last = text.find_last_not_of(" \t\n");
  return last == std::string_view::npos ? "" : text.substr(begin, last + 1 - begin);
}

std::vector<Document> ReadPlain(const std::string& text, const std::string& file) {
  std::vector<Document> documents;
  std::string current;
  int64_t start = 1;
  const auto finish = [&] {
    const std::string_view trimmed = TrimLines(current);
    if (!trimmed.empty()) {
      documents.push_back({std::string(trimmed), {}, Message(file, ":", start)});
    }
    current.clear();
  };
  for (const Line& line : SplitLines(text)) {
    const size_t end = line.text.find_last_not_of(" \t");
    if (end == 2 && line.text.starts_with("---")) {
      finish();
      start = line.number + 1;
      continue;
    }
    current += line.text;
    current += '\n';
  }
  finish();
  return documents;
}

std::vector<ChatMessage> ReadMessages(const Value& list, const std::string& where) {
  const auto wrong = [&](size_t i, const char* field) {
    throw Error(ErrorCode::kFormat,
                Message(where, ": message ", i + 1, " has no text '", field, "'"));
  };
  if (!list.is_array() || list.AsArray().empty()) {
    throw Error(ErrorCode::kFormat, where + ": field 'messages' is no list of messages");
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.AsArray().size(); ++i) {
    const Value& item = list.AsArray()[i];
    const Value* role = item.Find("role");
    const Value* content = item.Find("content");
    if (role == nullptr || !role->is_string()) wrong(i, "role");
    if (content == nullptr || !content->is_string()) wrong(i, "content");
    messages.push_back({role->AsString(), content->AsString()});
  }
  return messages;
}

Document ReadObject(const Value& object, const std::string& where, uint64_t seed) {
  if (const Value* text = object.Find("text"); text != nullptr) {
    if (!text->is_string() || text->AsString().empty()) {
      throw Error(ErrorCode::kFormat, where + ": field 'text' is empty or no text");
    }
    return {text->AsString(), {}, where};
  }
  if (const Value* messages = object.Find("messages"); messages != nullptr) {
    return {"", ReadMessages(*messages, where), where};
  }
  if (IsQuestion(object)) {
    return {"", QuestionMessages(QuestionOfObject(object, where, seed)), where};
  }
  throw Error(ErrorCode::kFormat,
              where + ": expected an object with 'text', 'messages' or a question");
}

std::vector<Document> ReadJsonLines(const std::string& text, const std::string& file,
                                    uint64_t seed) {
  std::vector<Document> documents;
  for (const Line& line : SplitLines(text)) {
    if (line.text.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = Message(file, ":", line.number);
    documents.push_back(ReadObject(Value::FromJson(line.text, where), where, seed));
  }
  return documents;
}

}  // namespace

std::string ReadUtf8File(const fs::path& file) {
  std::string text = ReadTextFile(file);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  const size_t bad = FindInvalidUtf8(text);
  if (bad != std::string::npos) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    throw Error(ErrorCode::kFormat,
                Message(file.string(), ":", line, ": the text is not valid UTF-8"),
                "convert the file to UTF-8");
  }
  return text;
}

std::vector<Line> SplitLines(std::string_view text) {
  std::vector<Line> lines;
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back({number, line});
    at = end + 1;
  }
  return lines;
}

std::vector<Document> ReadDocuments(const fs::path& file, uint64_t seed) {
  const std::string name = file.string();
  const std::string extension = file.extension().string();
  if (extension != ".txt" && extension != ".jsonl" && extension != ".csv") {
    throw Error(ErrorCode::kUsage, Message("cannot tell what ", name, " holds"),
                "text files end in .txt, .jsonl or .csv");
  }
  const std::string text = ReadUtf8File(file);
  std::vector<Document> documents;
  if (extension == ".txt") {
    documents = ReadPlain(text, name);
  } else if (extension == ".jsonl") {
    documents = ReadJsonLines(text, name, seed);
  } else {
    documents = DocumentsOfCsv(ParseCsv(text, name), name, seed);
  }
  if (documents.empty()) throw Error(ErrorCode::kData, name + " holds no document");
  return documents;
}

}  // namespace oscar
