#include "oscar/text/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace oscar {
namespace {

// Well-formed exactly when a decoder by the definition gets back a scalar value whose encoding it
// is.
TEST(Unicode, EveryScalarValueRoundTrips) {
  for (int32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    if (c >= 0xd800 && c < 0xe000) continue;
    AppendUtf8(c, text);
    ASSERT_EQ(FindInvalidUtf8(text), std::string::npos) << c;
    size_t at = 0;
    ASSERT_EQ(DecodeUtf8(text, at), c);
    ASSERT_EQ(at, text.size());
  }
}

TEST(Unicode, IllFormedSequencesAreFound) {
  const struct {
    std::string text;
    size_t at;
  } cases[] = {
      {"\x80", 0},
      {"a\xc3", 1},
      {"\xc0\x80", 0},  // overlong
      {"\xc1\xbf", 0},
      {"\xe0\x80\x80", 0},
      {"\xe0\x9f\xbf", 0},
      {"\xed\xa0\x80", 0},  // surrogate
      {"\xf0\x8f\xbf\xbf", 0},
      {"\xf4\x90\x80\x80", 0},  // above U+10FFFF
      {"\xf5\x80\x80\x80", 0},
      {"\xff", 0},
      {"\xe4\xbd", 0},  // cut off
      {"12345678\xe4\xbd\xa0z\xfe", 12},
      {"123456789abcdef\xe4\xbd.", 15},
  };
  for (const auto& c : cases) EXPECT_EQ(FindInvalidUtf8(c.text), c.at) << c.text;
  EXPECT_EQ(FindInvalidUtf8(""), std::string::npos);
  EXPECT_EQ(FindInvalidUtf8(std::string("a\0b", 3)), std::string::npos);
}

TEST(Unicode, WhiteSpaceIsTheUnicodeProperty) {
  for (const int32_t c : {0x09, 0x0d, 0x20, 0x85, 0xa0, 0x1680, 0x2000, 0x200a, 0x2028, 0x2029,
                          0x202f, 0x205f, 0x3000}) {
    EXPECT_TRUE(IsWhiteSpace(c)) << c;
  }
  for (const int32_t c : {0x08, 0x0e, 0x1c, 0x180e, 0x200b, 0x2060, 0xfeff, 0x41}) {
    EXPECT_FALSE(IsWhiteSpace(c)) << c;
  }
}

TEST(Unicode, Numeric) {
  // Digit, Arabic-Indic digit, superscript, fraction, Roman numeral, the ideographic zero (Nl).
  for (const int32_t c : {0x30, 0x39, 0x663, 0xb2, 0xbd, 0x2167, 0x3007}) EXPECT_TRUE(IsNumeric(c));
  for (const int32_t c : {0x2f, 0x3a, 0x41, 0x4e00, 0x20}) EXPECT_FALSE(IsNumeric(c)) << c;
}

TEST(Unicode, Normalization) {
  EXPECT_EQ(Normalize(Normalization::kNfc, "e\xcc\x81"), "\xc3\xa9");
  EXPECT_EQ(Normalize(Normalization::kNfd, "\xc3\xa9"), "e\xcc\x81");
  EXPECT_EQ(Normalize(Normalization::kNone, "e\xcc\x81"), "e\xcc\x81");
  EXPECT_EQ(Normalize(Normalization::kNfc, "\xef\xac\x81"), "\xef\xac\x81");  // no compatibility
  EXPECT_EQ(Normalize(Normalization::kNfc, "\xe1\x84\x80\xe1\x85\xa1"), "\xea\xb0\x80");  // Hangul
  const std::string nul("\xc3\xa9\0e\xcc\x81", 6);
  EXPECT_EQ(Normalize(Normalization::kNfc, nul), std::string("\xc3\xa9\0\xc3\xa9", 5));
}

}  // namespace
}  // namespace oscar
