#include "oscar/torchfile/utf8.h"

#include <cstddef>
#include <cstdint>

namespace oscar {

bool IsUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    if (length == 0 || length > text.size() - i) return false;
    for (size_t j = 1; j < length; ++j) {
      if ((static_cast<uint8_t>(text[i + j]) & 0xc0) != 0x80) return false;
    }
    if (length > 2) {
      const auto second = static_cast<uint8_t>(text[i + 1]);
      const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
      const bool outside = (lead == 0xed && second >= 0xa0) || (lead == 0xf4 && second >= 0x90);
      if (overlong || outside) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace oscar
