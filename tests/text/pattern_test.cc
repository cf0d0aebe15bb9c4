#include "oscar/text/pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/text/pretokenize.h"
#include "support/model_files.h"

namespace oscar {
namespace {

std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  const Pattern compiled(pattern);
  std::vector<Span> spans;
  Matcher(compiled).FindAll(text, spans);
  std::vector<std::string> out;
  for (const Span& span : spans) out.emplace_back(span.Of(text));
  return out;
}

using Strings = std::vector<std::string>;

TEST(Pattern, UnicodeSemantics) {
  // U+180E is no white space, U+0085 and U+2028 are.
  EXPECT_EQ(Matches("\\s+", "a \xc2\x85\xe2\x80\xa8 b\xe1\xa0\x8e"),
            (Strings{" \xc2\x85\xe2\x80\xa8 "}));
  EXPECT_EQ(Matches("\\S+", "a \xe1\xa0\x8e"), (Strings{"a", "\xe1\xa0\x8e"}));
  EXPECT_EQ(Matches("[^\\s\\p{L}]+", "a-\xe1\xa0\x8e b"), (Strings{"-\xe1\xa0\x8e"}));
  // The long s folds to s.
  EXPECT_EQ(Matches("(?i:'s)", "x's 'S '\xc5\xbf"), (Strings{"'s", "'S", "'\xc5\xbf"}));
  EXPECT_EQ(Matches("'s", "'S 's"), (Strings{"'s"}));
  EXPECT_EQ(Matches("\\p{Lu}", "a\xc3\x84z"), (Strings{"\xc3\x84"}));
  EXPECT_EQ(Matches("\\x41|\\x{e9}|\\u00EA", "xA\xc3\xa9\xc3\xaa"),
            (Strings{"A", "\xc3\xa9", "\xc3\xaa"}));
}

TEST(Pattern, EmptyMatchesAreLeftOut) {
  EXPECT_EQ(Matches("x*", "axxb\xc3\xa9x"), (Strings{"xx", "x"}));
  EXPECT_TRUE(Matches("y*", "\xc3\xa9").empty());
  EXPECT_TRUE(Matches("a", "").empty());
}

TEST(Pattern, LongRuns) {
  const std::string spaces(200'000, ' ');
  EXPECT_EQ(Matches("\\s+(?!\\S)|\\s+", spaces + "x").size(), 2U);
  EXPECT_EQ(Matches("\\s*[\\r\\n]+|\\s+", spaces + "\n")[0].size(), spaces.size() + 1);
}

TEST(Pattern, DoubtfulConstructsAreRefusedByName) {
  const struct {
    const char* pattern;
    const char* named;
  } cases[] = {
      {"^a", "'^'"},        {"a$", "'$'"},      {"\\w+", "\\w"},          {"\\bx", "\\b"},
      {"\\h", "\\h"},       {"(a)\\1", "\\1"},  {"\\p{Han}", "\\p{Han}"}, {"\\p{^L}", "\\p{^L}"},
      {"\\pL", "\\p"},      {"(?m:a)", "(?m:"}, {"(?i)a", "(?i)"},        {"(?<n>a)", "(?<n"},
      {"[a[b]]", "nested"}, {"[a&&b]", "&&"},   {"[\\S]", "\\S"},         {"\\d{2}+", "}+"},
      {"(*UCP)a", "(*"},    {"\\xZ", "\\x"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.pattern);
    OSCAR_EXPECT_ERROR(TranslatePattern(c.pattern), ErrorCode::kUnsupported, c.named);
  }
  OSCAR_EXPECT_ERROR(Pattern("(a"), ErrorCode::kFormat, "'(a'");
  OSCAR_EXPECT_ERROR(Pattern("a{2,1}"), ErrorCode::kFormat, "position");
}

Strings Pieces(std::vector<SplitRule> rules, const std::string& text) {
  Strings out;
  for (const Span& span : PreTokenizer(std::move(rules)).Split(text))
    out.emplace_back(span.Of(text));
  return out;
}

TEST(PreTokenizer, Behaviors) {
  const std::string text = "a,b,,c";
  const auto with = [&](SplitBehavior behavior, bool invert = false) {
    return Pieces({{SplitRule::Kind::kPattern, ",", behavior, invert}}, text);
  };
  EXPECT_EQ(with(SplitBehavior::kIsolated), (Strings{"a", ",", "b", ",", ",", "c"}));
  EXPECT_EQ(with(SplitBehavior::kRemoved), (Strings{"a", "b", "c"}));
  EXPECT_EQ(with(SplitBehavior::kRemoved, true), (Strings{",", ",", ","}));
  EXPECT_EQ(with(SplitBehavior::kMergedWithPrevious), (Strings{"a,", "b,", ",", "c"}));
  EXPECT_EQ(with(SplitBehavior::kMergedWithNext), (Strings{"a", ",b", ",", ",c"}));
  EXPECT_EQ(with(SplitBehavior::kContiguous), (Strings{"a", ",", "b", ",,", "c"}));
}

// The lookahead of a later step sees only its own piece.
TEST(PreTokenizer, StepsAreIndependent) {
  SplitRule digits;
  digits.kind = SplitRule::Kind::kIndividualDigits;
  const SplitRule gpt2{SplitRule::Kind::kPattern, kGpt2Pattern, SplitBehavior::kIsolated, false};
  EXPECT_EQ(Pieces({digits, gpt2}, "a  12"), (Strings{"a", "  ", "1", "2"}));
  EXPECT_EQ(Pieces({gpt2}, "a  12"), (Strings{"a", " ", " 12"}));
  digits.kind = SplitRule::Kind::kDigits;
  EXPECT_EQ(Pieces({digits}, "12a3"), (Strings{"12", "a", "3"}));
  EXPECT_TRUE(Pieces({digits, gpt2}, "").empty());
}

}  // namespace
}  // namespace oscar
