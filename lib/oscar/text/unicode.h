// UTF-8 and the Unicode properties that tokenizers split by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// Byte offset of the first ill-formed sequence (overlong forms and surrogates are ill-formed), or
// npos.
size_t FindInvalidUtf8(std::string_view text);

// The character at `at` of well-formed text; moves `at` behind it.
int32_t DecodeUtf8(std::string_view text, size_t& at);
void AppendUtf8(int32_t code_point, std::string& out);

// General category Nd, Nl or No.
bool IsNumeric(int32_t code_point);
// The property White_Space.
bool IsWhiteSpace(int32_t code_point);
// What \w means in Unicode: alphabetic, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(int32_t code_point);

enum class Normalization { kNone, kNfc, kNfd };
// `text` must be well-formed. Characters newer than Unicode 9 stay as and where they are, as in
// the reference library.
std::string Normalize(Normalization form, std::string_view text);

}  // namespace oscar
