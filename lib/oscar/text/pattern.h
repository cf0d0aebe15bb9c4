// Regular expressions of tokenizer files, which are written for Oniguruma with Unicode semantics.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// A range of bytes of a text.
struct Span {
  size_t begin = 0;
  size_t end = 0;

  std::string_view Of(std::string_view text) const { return text.substr(begin, end - begin); }
  friend bool operator==(const Span&, const Span&) = default;
};

// The same expression for PCRE2: \s and \S become the property White_Space (PCRE2's own differ in
// U+180E). Throws Error(kUnsupported) naming the construct where the two engines might disagree:
// anchors, back references, \w, \b, \h, script names, inline flags other than (?i:...), nested
// classes.
std::string TranslatePattern(std::string_view pattern);

class Pattern {
 public:
  // Compiles TranslatePattern(pattern). Throws Error(kFormat) with the position of a fault.
  explicit Pattern(std::string_view pattern);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

 private:
  friend class Matcher;
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

// The working memory to apply a pattern with; one per thread. Keeps a reference to the pattern.
class Matcher {
 public:
  explicit Matcher(const Pattern& pattern);
  Matcher(Matcher&&) noexcept;
  ~Matcher();

  // Appends the leftmost matches in order, without empty ones. `text` must be well-formed UTF-8;
  // lookarounds see nothing beyond it. Throws Error(kUnsupported) when a match needs more memory
  // than is sensible.
  void FindAll(std::string_view text, std::vector<Span>& out);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace oscar
