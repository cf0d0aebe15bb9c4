#include "oscar/text/csv.h"

#include <utility>

#include "oscar/core/error.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::vector<CsvRecord> Run() {
    std::vector<CsvRecord> records;
    while (at_ < text_.size()) {
      if (EndOfLine()) continue;
      CsvRecord record;
      record.line = line_;
      do {
        record.fields.push_back(Field());
      } while (TakeComma());
      if (at_ < text_.size() && !EndOfLine()) Wrong(line_, "text after a closing quote");
      records.push_back(std::move(record));
    }
    return records;
  }

 private:
  [[noreturn]] void Wrong(int64_t line, const std::string& what) const {
    throw Error(ErrorCode::kFormat, Message(where_, ":", line, ": ", what));
  }

  bool TakeComma() {
    if (at_ >= text_.size() || text_[at_] != ',') return false;
    ++at_;
    return true;
  }

  // Takes LF or CRLF (or a last CR).
  bool EndOfLine() {
    size_t length = 0;
    if (text_[at_] == '\n') length = 1;
    if (text_[at_] == '\r') {
      if (at_ + 1 == text_.size()) length = 1;
      if (at_ + 1 < text_.size() && text_[at_ + 1] == '\n') length = 2;
    }
    at_ += length;
    line_ += length > 0 ? 1 : 0;
    return length > 0;
  }

  std::string Field() {
    if (at_ < text_.size() && text_[at_] == '"') return QuotedField();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
      if (text_[at_] == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] == '\n')) break;
      if (text_[at_] == '"') Wrong(line_, "a quote inside a field that is not quoted");
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string QuotedField() {
    const int64_t begin = line_;
    std::string out;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
          ++at_;
        } else {
          ++at_;
          return out;
        }
      }
      if (c == '\n') ++line_;
      out += c;
    }
    Wrong(begin, "a quoted field starts here and never ends");
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRecord> ParseCsv(std::string_view text, const std::string& where) {
  return CsvParser(text, where).Run();
}

}  // namespace oscar
