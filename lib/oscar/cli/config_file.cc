#include "oscar/cli/config_file.h"

#include <fmt/format.h>

#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"

namespace oscar::cli {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kBetween = " \t\r";

bool IsKeyCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

// Appends `code` as UTF-8.
void AppendUtf8(uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80U | ((code >> shift) & 0x3fU)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0U | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0U | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0U | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  }

  std::vector<ConfigItem> Items() {
    std::vector<ConfigItem> items;
    for (SkipLines(); !AtEnd(); SkipLines()) {
      items.push_back(Item());
      EndLine();
    }
    return items;
  }

 private:
  [[noreturn]] void Fail(const std::string& what, std::string hint = "") const {
    throw Error(ErrorCode::kUsage, fmt::format("{}:{}: {}", name_, line_, what), std::move(hint));
  }

  bool AtEnd() const { return at_ == text_.size(); }
  char Peek() const { return AtEnd() ? '\n' : text_[at_]; }
  bool AtLineEnd() const { return Peek() == '\n'; }
  // What stands here, for messages.
  std::string Found() const {
    if (AtEnd()) return "the end of the file";
    if (AtLineEnd()) return "the end of the line";
    return fmt::format("'{}'", Printable(text_.substr(at_, 1)));
  }
  char Take() {
    if (text_[at_] == '\n') ++line_;
    return text_[at_++];
  }

  void SkipBlanks() {
    while (!AtEnd() && kBetween.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  // Blanks and a comment, up to the end of the line.
  void SkipRest() {
    SkipBlanks();
    if (Peek() != '#') return;
    while (!AtLineEnd()) ++at_;
  }
  // Empty lines and lines of comment.
  void SkipLines() {
    SkipRest();
    while (!AtEnd() && AtLineEnd()) {
      Take();
      SkipRest();
    }
  }

  void EndLine() {
    SkipRest();
    if (!AtLineEnd()) Fail(fmt::format("expected the end of the line, found {}", Found()));
  }

  ConfigItem Item() {
    ConfigItem item;
    item.line = line_;
    if (Peek() == '[') Fail("sections are not known", "keys are the long option names, one a line");
    while (!AtEnd() && IsKeyCharacter(text_[at_])) item.key += Take();
    if (item.key.empty()) Fail(fmt::format("expected a key, found {}", Found()));
    SkipBlanks();
    if (Peek() != '=') {
      Fail(fmt::format("expected '=' after '{}', found {}", item.key, Found()));
    }
    Take();
    SkipBlanks();
    if (Peek() == '[') {
      item.is_list = true;
      item.values = List();
    } else {
      item.values.push_back(Scalar(false));
    }
    return item;
  }

  // Values between brackets, separated by commas, over any number of lines.
  std::vector<std::string> List() {
    const int64_t first_line = line_;
    std::vector<std::string> values;
    Take();
    bool separated = true;
    while (true) {
      SkipLines();
      if (AtEnd()) Fail(fmt::format("the list that starts in line {} has no end", first_line));
      if (Peek() == ']') break;
      if (!separated) Fail(fmt::format("expected ',' or ']', found {}", Found()));
      values.push_back(Scalar(true));
      SkipLines();
      separated = Peek() == ',' && !AtEnd();
      if (separated) Take();
    }
    Take();
    return values;
  }

  std::string Scalar(bool in_list) {
    switch (Peek()) {
      case '"':
        return Quoted();
      case '\'':
        return Literal();
      case '[':
        Fail("lists do not nest");
      default:
        return Bare(in_list);
    }
  }

  // Anything without blanks; a comma ends it in a list only. What might be read in two ways is
  // refused.
  std::string Bare(bool in_list) {
    std::string value;
    while (!AtLineEnd() && kBetween.find(Peek()) == std::string_view::npos) {
      const char c = Peek();
      if (in_list && (c == ',' || c == ']')) break;
      if ((c == '#' && !value.empty()) || c == '"' || c == '\'' || c == '[' || c == ']') {
        Fail(fmt::format("'{}' inside a value without quotes", c), "put the value in quotes");
      }
      if (c == '#') break;
      CheckCharacter(c);
      value += Take();
    }
    if (value.empty()) Fail(fmt::format("expected a value, found {}", Found()));
    return value;
  }

  void CheckCharacter(char c) const {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && c != '\t') || code == 0x7f) {
      Fail(fmt::format("control character 0x{:02x} in a value", code));
    }
  }

  std::string Literal() {
    std::string value;
    Take();
    while (Peek() != '\'') {
      if (AtLineEnd()) Fail("a quote is not closed");
      CheckCharacter(Peek());
      value += Take();
    }
    Take();
    return value;
  }

  std::string Quoted() {
    std::string value;
    Take();
    while (Peek() != '"') {
      if (AtLineEnd()) Fail("a quote is not closed");
      CheckCharacter(Peek());
      const char c = Take();
      if (c == '\\') {
        Escape(value);
      } else {
        value += c;
      }
    }
    Take();
    return value;
  }

  void Escape(std::string& value) {
    static constexpr std::string_view kLetters = "btnfr\"\\";
    static constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
    if (AtLineEnd()) Fail("a quote is not closed");
    const char letter = Take();
    if (const size_t i = kLetters.find(letter); i != std::string_view::npos) {
      value += kMeanings[i];
      return;
    }
    if (letter != 'u' && letter != 'U') {
      Fail(fmt::format("unknown escape '\\{}'", Printable(std::string_view(&letter, 1))),
           "write \\\\ for a backslash, or put the value in single quotes");
    }
    uint32_t code = 0;
    for (int i = 0; i < (letter == 'u' ? 4 : 8); ++i) {
      static constexpr std::string_view kDigits = "0123456789abcdef";
      const char c = Peek();
      const char lower = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
      const size_t digit = kDigits.find(lower);
      if (digit == std::string_view::npos) Fail(fmt::format("\\{} lacks digits", letter));
      code = code << 4 | static_cast<uint32_t>(digit);
      Take();
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000) || code == 0) {
      Fail(fmt::format("\\{} of no character", letter));
    }
    AppendUtf8(code, value);
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

std::vector<ConfigItem> ParseConfig(std::string_view text, const std::string& name) {
  return Reader(text, name).Items();
}

std::string QuotedConfigText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20 || code == 0x7f) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace oscar::cli
