#include "oscar/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "oscar/text/unicode.h"

namespace oscar {
namespace {

int32_t CharacterBefore(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return DecodeUtf8(text, begin);
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordCharacter(CharacterBefore(text, begin))) return true;
  return end < text.size() && IsWordCharacter(DecodeUtf8(text, end));
}

size_t WhiteSpaceBefore(std::string_view text, size_t at) {
  while (at > 0) {
    if (!IsWhiteSpace(CharacterBefore(text, at))) break;
    do {
      --at;
    } while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  }
  return at;
}

size_t WhiteSpaceAfter(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!IsWhiteSpace(DecodeUtf8(text, next))) break;
    at = next;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, Normalization form) {
  nodes_.emplace_back();
  for (const AddedToken& token : tokens) {
    const std::string content = Normalize(form, token.content);
    if (content.empty()) continue;
    size_t node = 0;
    for (const char c : content) {
      const auto byte = static_cast<uint8_t>(c);
      auto& children = nodes_[node].children;
      const auto it = std::find_if(children.begin(), children.end(),
                                   [&](const auto& child) { return child.first == byte; });
      if (it != children.end()) {
        node = static_cast<size_t>(it->second);
        continue;
      }
      children.emplace_back(byte, static_cast<int32_t>(nodes_.size()));
      node = nodes_.size();
      nodes_.emplace_back();
    }
    nodes_[node].token = static_cast<int32_t>(tokens_.size());
    starts_[static_cast<uint8_t>(content[0])] = true;
    tokens_.push_back(token);
  }
}

int32_t AddedTokenFinder::LongestAt(std::string_view text, size_t at, size_t& end) const {
  int32_t best = -1;
  size_t node = 0;
  while (true) {
    if (nodes_[node].token >= 0) {
      best = nodes_[node].token;
      end = at;
    }
    if (at == text.size()) return best;
    const auto byte = static_cast<uint8_t>(text[at++]);
    const auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [&](const auto& child) { return child.first == byte; });
    if (it == children.end()) return best;
    node = static_cast<size_t>(it->second);
  }
}

std::vector<Stretch> AddedTokenFinder::Cut(std::string_view text) const {
  std::vector<Stretch> out;
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = at;
    const int32_t index = starts_[static_cast<uint8_t>(text[at])] ? LongestAt(text, at, end) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    Span span{at, end};
    at = end;
    if (token.single_word && TouchesWord(text, span.begin, span.end)) continue;
    // White space that the previous match took is not taken twice.
    if (token.lstrip) span.begin = std::max(done, WhiteSpaceBefore(text, span.begin));
    if (token.rstrip) span.end = WhiteSpaceAfter(text, span.end);
    if (span.begin > done) out.push_back({{done, span.begin}, -1});
    out.push_back({span, token.id});
    done = span.end;
    at = std::max(at, done);
  }
  if (done < text.size()) out.push_back({{done, text.size()}, -1});
  return out;
}

}  // namespace oscar
