// Cutting text into the pieces that byte pair encoding works on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/text/pattern.h"

namespace oscar {

// What becomes of the matches of a splitting pattern.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// One step: a pattern, or digits. Later steps cut the pieces of earlier ones; a pattern sees only
// the piece it cuts.
struct SplitRule {
  enum class Kind { kPattern, kDigits, kIndividualDigits };
  Kind kind = Kind::kPattern;
  std::string pattern;  // an Oniguruma expression
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // matches count as text between matches and the other way round

  // A short text that names the rule, for the tokenizer's hash.
  std::string Canonical() const;
};

// The GPT-2 expression, which the ByteLevel step of tokenizer.json uses.
extern const char kGpt2Pattern[];

class PreTokenizer {
 public:
  // Throws as Pattern does.
  explicit PreTokenizer(std::vector<SplitRule> rules);

  // The pieces of well-formed text, in order, none empty.
  std::vector<Span> Split(std::string_view text) const;

 private:
  struct Step {
    SplitRule rule;
    std::vector<Pattern> pattern;  // one, or none for digits
  };
  std::vector<Step> steps_;
};

}  // namespace oscar
