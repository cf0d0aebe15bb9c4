// Finding added tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "oscar/text/tokenizer_spec.h"

namespace oscar {

// A stretch of text: an added token, or (id < 0) text between added tokens.
struct Stretch {
  Span span;
  int32_t id = -1;
};

// Leftmost-longest search for a set of tokens.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // `form` is applied to the tokens first (for tokens matched in normalised text).
  AddedTokenFinder(const std::vector<AddedToken>& tokens, Normalization form);

  // Cuts the text; stretches cover it in order. A match that breaks its token's single_word rule
  // is text; lstrip and rstrip widen a match over adjacent white space.
  std::vector<Stretch> Cut(std::string_view text) const;

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_ of the token that ends here
    std::vector<std::pair<uint8_t, int32_t>> children;
  };
  int32_t LongestAt(std::string_view text, size_t at, size_t& end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

}  // namespace oscar
