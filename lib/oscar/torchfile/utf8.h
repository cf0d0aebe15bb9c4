// UTF-8 of untrusted text.
#pragma once

#include <string_view>

namespace oscar {

// Well-formed UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool IsUtf8(std::string_view text);

}  // namespace oscar
