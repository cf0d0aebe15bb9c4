#include "oscar/quant/packing.h"

#include "oscar/core/error.h"

namespace oscar {

void PackQuarters(const uint8_t* codes, int64_t dim, uint8_t* packed) {
  OSCAR_CHECK(dim % 4 == 0);
  const int64_t quarter = dim / 4;
  for (int64_t i = 0; i < quarter; ++i) {
    uint32_t byte = 0;
    for (int64_t part = 0; part < 4; ++part) {
      byte |= (codes[i + part * quarter] & 3U) << (2 * part);
    }
    packed[i] = static_cast<uint8_t>(byte);
  }
}

void UnpackQuarters(const uint8_t* packed, int64_t dim, uint8_t* codes) {
  OSCAR_CHECK(dim % 4 == 0);
  const int64_t quarter = dim / 4;
  for (int64_t part = 0; part < 4; ++part) {
    for (int64_t i = 0; i < quarter; ++i) {
      codes[i + part * quarter] = static_cast<uint8_t>((packed[i] >> (2 * part)) & 3U);
    }
  }
}

}  // namespace oscar
