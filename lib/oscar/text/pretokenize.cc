#include "oscar/text/pretokenize.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/text/unicode.h"
#include "oscar/weights/message.h"

namespace oscar {

const char kGpt2Pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

namespace {

struct Part {
  Span span;
  bool match = false;
};

// Every numeric character is a match.
void FindDigits(std::string_view text, std::vector<Span>& out) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (IsNumeric(DecodeUtf8(text, at))) out.push_back({begin, at});
  }
}

// Matches and the text between them.
std::vector<Part> Partition(size_t length, const std::vector<Span>& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t at = 0;
  for (const Span& match : matches) {
    if (match.begin > at) parts.push_back({{at, match.begin}, invert});
    parts.push_back({match, !invert});
    at = match.end;
  }
  if (at < length) parts.push_back({{at, length}, invert});
  return parts;
}

// Appends matches and the text between them alike, moved by `offset`.
void Isolate(size_t length, const std::vector<Span>& matches, size_t offset,
             std::vector<Span>& out) {
  size_t at = 0;
  for (const Span& match : matches) {
    if (match.begin > at) out.push_back({at + offset, match.begin + offset});
    out.push_back({match.begin + offset, match.end + offset});
    at = match.end;
  }
  if (at < length) out.push_back({at + offset, length + offset});
}

// Appends the pieces that a behaviour makes of the parts, moved by `offset`.
void Join(const std::vector<Part>& parts, SplitBehavior behavior, size_t offset,
          std::vector<Span>& out) {
  const size_t first = out.size();
  const auto push = [&](const Span& span) {
    out.push_back({span.begin + offset, span.end + offset});
  };
  bool previous = false;
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->match && !previous && out.size() > first) {
        out.back().begin = part->span.begin + offset;
      } else {
        push(part->span);
      }
      previous = part->match;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
    return;
  }
  for (const Part& part : parts) {
    const bool extend =
        out.size() > first &&
        ((behavior == SplitBehavior::kContiguous && part.match == previous) ||
         (behavior == SplitBehavior::kMergedWithPrevious && part.match && !previous));
    if (extend) {
      out.back().end = part.span.end + offset;
    } else if (behavior != SplitBehavior::kRemoved || !part.match) {
      push(part.span);
    }
    previous = part.match;
  }
}

}  // namespace

std::string SplitRule::Canonical() const {
  switch (kind) {
    case Kind::kDigits:
      return "digits";
    case Kind::kIndividualDigits:
      return "individual digits";
    case Kind::kPattern:
      break;
  }
  return Message("split ", static_cast<int>(behavior), invert ? " inverted " : " ", pattern);
}

PreTokenizer::PreTokenizer(std::vector<SplitRule> rules) {
  for (SplitRule& rule : rules) {
    Step step;
    if (rule.kind == SplitRule::Kind::kPattern) step.pattern.emplace_back(rule.pattern);
    if (rule.kind == SplitRule::Kind::kDigits) rule.behavior = SplitBehavior::kContiguous;
    step.rule = std::move(rule);
    steps_.push_back(std::move(step));
  }
}

std::vector<Span> PreTokenizer::Split(std::string_view text) const {
  std::vector<Span> pieces;
  if (!text.empty()) pieces.push_back({0, text.size()});
  std::vector<Span> matches;
  for (const Step& step : steps_) {
    std::optional<Matcher> matcher;
    if (!step.pattern.empty()) matcher.emplace(step.pattern[0]);
    std::vector<Span> next;
    next.reserve(pieces.size());
    for (const Span& piece : pieces) {
      const std::string_view part = piece.Of(text);
      matches.clear();
      if (matcher) {
        matcher->FindAll(part, matches);
      } else {
        FindDigits(part, matches);
      }
      if (step.rule.behavior == SplitBehavior::kIsolated) {
        Isolate(part.size(), matches, piece.begin, next);
      } else {
        Join(Partition(part.size(), matches, step.rule.invert), step.rule.behavior, piece.begin,
             next);
      }
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace oscar
