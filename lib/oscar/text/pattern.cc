#include "oscar/text/pattern.h"

#include <pcre2.h>

#include <array>
#include <cctype>
#include <new>

#include "oscar/core/error.h"
#include "oscar/text/unicode.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

// The characters with the property White_Space, for use inside a class.
constexpr char kWhiteSpace[] =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

// Walks over a pattern and copies it piece by piece.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string Run() {
    while (at_ < pattern_.size()) {
      if (Peek(0) == '\\') {
        Escape();
      } else if (in_class_) {
        ClassCharacter();
      } else {
        Character();
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void Unsupported(std::string_view construct) const {
    throw Error(ErrorCode::kUnsupported,
                Message("the tokenizer's pattern ", Quoted(pattern_), " uses ", Quoted(construct),
                        ", which is not supported"));
  }
  char Peek(size_t offset) const {
    return at_ + offset < pattern_.size() ? pattern_[at_ + offset] : '\0';
  }
  void Copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void Escape() {
    const char c = Peek(1);
    if (c == 's' || c == 'S') {
      if (in_class_ && c == 'S') Unsupported("\\S inside a class");
      out_ += in_class_ ? kWhiteSpace : Message(c == 's' ? "[" : "[^", kWhiteSpace, "]");
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      Property();
    } else if (c == 'r' || c == 'n' || c == 't' || c == 'f' || c == 'd' || c == 'D' ||
               std::ispunct(static_cast<unsigned char>(c)) != 0) {
      Copy(2);
    } else if (c == 'x' || c == 'u') {
      Hexadecimal();
    } else {
      Unsupported(pattern_.substr(at_, 2));
    }
  }

  // \p{X} with a general category of one or two letters, which mean the same in both engines.
  void Property() {
    const size_t close = pattern_.find('}', at_);
    const std::string_view whole =
        pattern_.substr(at_, close == pattern_.npos ? 2 : close + 1 - at_);
    constexpr std::string_view kMajor = "LMNPSZC";
    const bool braces = whole.size() == 5 || whole.size() == 6;
    if (!braces || whole[2] != '{' || kMajor.find(whole[3]) == kMajor.npos ||
        (whole.size() == 6 && std::islower(static_cast<unsigned char>(whole[4])) == 0)) {
      Unsupported(whole);
    }
    Copy(whole.size());
  }

  // \xHH, \x{H...} and \uHHHH.
  void Hexadecimal() {
    const auto hex = [&](size_t offset) {
      return std::isxdigit(static_cast<unsigned char>(Peek(offset))) != 0;
    };
    if (Peek(1) == 'x' && Peek(2) == '{') {
      const size_t close = pattern_.find('}', at_);
      if (close == pattern_.npos) Unsupported("\\x{");
      Copy(close + 1 - at_);
      return;
    }
    const size_t digits = Peek(1) == 'x' ? 2 : 4;
    for (size_t i = 0; i < digits; ++i) {
      if (!hex(2 + i)) Unsupported(pattern_.substr(at_, 2));
    }
    out_ += Message("\\x{", pattern_.substr(at_ + 2, digits), "}");
    at_ += 2 + digits;
  }

  void ClassCharacter() {
    if (Peek(0) == '[') Unsupported("nested classes");
    if (Peek(0) == '&' && Peek(1) == '&') Unsupported("&& inside a class");
    if (Peek(0) == ']') in_class_ = false;
    Copy(1);
  }

  void Character() {
    switch (Peek(0)) {
      case '[':
        in_class_ = true;
        Copy(1);
        if (Peek(0) == '^') Copy(1);
        if (Peek(0) == ']') Unsupported("[]");
        return;
      case '^':
      case '$':
        Unsupported(pattern_.substr(at_, 1));
      case '(':
        Group();
        return;
      case '}':
        if (Peek(1) == '+') Unsupported("}+");
        Copy(1);
        return;
      default:
        Copy(1);
    }
  }

  void Group() {
    constexpr std::array<std::string_view, 7> kKnown = {"(?:",  "(?i:", "(?=", "(?!",
                                                        "(?<=", "(?<!", "(?>"};
    if (Peek(1) == '?') {
      for (const std::string_view start : kKnown) {
        if (pattern_.substr(at_).starts_with(start)) return Copy(start.size());
      }
      Unsupported(pattern_.substr(at_, 4));
    }
    if (Peek(1) == '*') Unsupported("(*");
    Copy(1);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string Pcre2Text(int code) {
  PCRE2_UCHAR buffer[128];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* p) const { kFree(p); }
};
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data, pcre2_match_data_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context, pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack, pcre2_jit_stack_free>>;

}  // namespace

std::string TranslatePattern(std::string_view pattern) { return Translator(pattern).Run(); }

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, Freer<pcre2_code, pcre2_code_free>> code;
  std::string text;
};

Pattern::Pattern(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  compiled_->text = std::string(pattern);
  const std::string translated = TranslatePattern(pattern);
  const std::unique_ptr<pcre2_compile_context,
                        Freer<pcre2_compile_context, pcre2_compile_context_free>>
      context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                      translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                                      context.get()));
  if (compiled_->code == nullptr) {
    throw Error(ErrorCode::kFormat,
                Message("the tokenizer's pattern ", Quoted(pattern), " is faulty near position ",
                        offset, ": ", Pcre2Text(error)));
  }
  // Where there is no just-in-time compiler the interpreter does the same, slower.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
}

Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

struct Matcher::Memory {
  const Pattern::Compiled* pattern;
  MatchData data;
  MatchContext context;
  JitStack stack;
};

Matcher::Matcher(const Pattern& pattern) : memory_(std::make_unique<Memory>()) {
  memory_->pattern = pattern.compiled_.get();
  memory_->data.reset(pcre2_match_data_create_from_pattern(memory_->pattern->code.get(), nullptr));
  memory_->context.reset(pcre2_match_context_create(nullptr));
  memory_->stack.reset(pcre2_jit_stack_create(32 * 1024, 16 * 1024 * 1024, nullptr));
  if (memory_->data == nullptr || memory_->context == nullptr) throw std::bad_alloc();
  // Without the larger stack (no just-in-time compiler) the default one serves.
  if (memory_->stack != nullptr) {
    pcre2_jit_stack_assign(memory_->context.get(), nullptr, memory_->stack.get());
  }
}

Matcher::Matcher(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

void Matcher::FindAll(std::string_view text, std::vector<Span>& out) {
  const pcre2_code* code = memory_->pattern->code.get();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match = [&](size_t at, uint32_t options) {
    return pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | options,
                       memory_->data.get(), memory_->context.get());
  };
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(memory_->data.get());
  size_t at = 0;
  while (at < text.size()) {
    int status = match(at, 0);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = match(at, PCRE2_NO_JIT);
    if (status == PCRE2_ERROR_NOMATCH) return;
    if (status < 0) {
      throw Error(ErrorCode::kUnsupported,
                  Message("matching the tokenizer's pattern ", Quoted(memory_->pattern->text),
                          " failed at byte ", at, ": ", Pcre2Text(status)));
    }
    at = found[1];
    if (found[1] > found[0]) {
      out.push_back({found[0], found[1]});
    } else if (at < text.size()) {
      DecodeUtf8(text, at);  // an empty match: go on behind the next character
    }
  }
}

}  // namespace oscar
