#include "oscar/quant/packing.h"

#include "oscar/core/error.h"

namespace oscar {

void RequirePackable(const std::map<int, LayerShape>& layers, const std::string& where) {
  for (const auto& [layer, shape] : layers) {
    for (const bool key : {true, false}) {
      const int64_t dim = key ? shape.k_dim : shape.v_dim;
      if (dim > 0 && dim % kChannelsPerByte == 0) continue;
      throw Error(ErrorCode::kUnsupported,
                  where + ": layer " + std::to_string(layer) + ": head dim " + std::to_string(dim) +
                      " of " + (key ? "keys" : "values") +
                      " cannot be packed in 2 bits: expected a multiple of 4",
                  "no engine's 2-bit cache holds such heads");
    }
  }
}

void PackQuarters(const uint8_t* codes, int64_t dim, uint8_t* packed) {
  OSCAR_CHECK(dim % kChannelsPerByte == 0);
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
  OSCAR_CHECK(dim % kChannelsPerByte == 0);
  const int64_t quarter = dim / 4;
  for (int64_t part = 0; part < 4; ++part) {
    for (int64_t i = 0; i < quarter; ++i) {
      codes[i + part * quarter] = static_cast<uint8_t>((packed[i] >> (2 * part)) & 3U);
    }
  }
}

}  // namespace oscar
