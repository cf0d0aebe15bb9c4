#include "oscar/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>

#include "oscar/core/error.h"

namespace oscar {
namespace {

// Length of the well-formed sequence at `at`, or 0. The bounds of the second byte exclude overlong
// forms, surrogates and what lies above U+10FFFF (Unicode, table 3-7).
size_t SequenceLength(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  size_t length = 0;
  unsigned low = 0x80, high = 0xbf;
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() - at < length || byte(at + 1) < low || byte(at + 1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

// Characters of later Unicode versions that have a combining class or a composition. The reference
// normaliser has the tables of Unicode 9, where they are unassigned: it leaves them alone and moves
// nothing across them. Found by comparing the two over all characters; what Unicode 15 and 16
// added is included, so that the version of utf8proc does not matter.
struct Range {
  int32_t first, last;
};
constexpr Range kUnknownToNormalizer[] = {
    {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0xece, 0xece},
    {0x1715, 0x1715},   {0x1abf, 0x1aff},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0x105c0, 0x105ff}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac},
    {0x10efc, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x11380, 0x113ff}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16100, 0x1613f},
    {0x16d40, 0x16d7f}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}};

bool IsUnknownToNormalizer(int32_t c) {
  const auto* it =
      std::upper_bound(std::begin(kUnknownToNormalizer), std::end(kUnknownToNormalizer), c,
                       [](int32_t x, const Range& r) { return x < r.first; });
  return it != std::begin(kUnknownToNormalizer) && c <= std::prev(it)->last;
}

// Appends the normal form of a stretch of text without such characters.
void AppendNormalized(Normalization form, std::string_view text, std::string& out) {
  if (text.empty()) return;
  const int options =
      UTF8PROC_STABLE | (form == Normalization::kNfc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  OSCAR_CHECK(length >= 0);
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    if (text.size() - at >= 8) {
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const size_t length = SequenceLength(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

int32_t DecodeUtf8(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<int32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const int32_t lead = byte(0);
  if (lead < 0x80) {
    ++at;
    return lead;
  }
  int32_t value;
  if (lead < 0xe0) {
    value = ((lead & 0x1f) << 6) | (byte(1) & 0x3f);
    at += 2;
  } else if (lead < 0xf0) {
    value = ((lead & 0x0f) << 12) | ((byte(1) & 0x3f) << 6) | (byte(2) & 0x3f);
    at += 3;
  } else {
    value = ((lead & 0x07) << 18) | ((byte(1) & 0x3f) << 12) | ((byte(2) & 0x3f) << 6) |
            (byte(3) & 0x3f);
    at += 4;
  }
  return value;
}

void AppendUtf8(int32_t code_point, std::string& out) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(code_point, buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

bool IsNumeric(int32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  const utf8proc_category_t category = utf8proc_category(code_point);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsWhiteSpace(int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsWordCharacter(int32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  // Joiners, and symbols that are alphabetic (circled and squared letters).
  if (c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
      (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189)) {
    return true;
  }
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

std::string Normalize(Normalization form, std::string_view text) {
  if (form == Normalization::kNone || IsAscii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!IsUnknownToNormalizer(DecodeUtf8(text, at))) continue;
    AppendNormalized(form, text.substr(done, begin - done), out);
    out += text.substr(begin, at - begin);
    done = at;
  }
  AppendNormalized(form, text.substr(done), out);
  return out;
}

}  // namespace oscar
