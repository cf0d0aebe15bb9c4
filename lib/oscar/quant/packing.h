// The byte layout of 2-bit codes in the public cache ("quarter split", method.md 5.3).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "oscar/core/layer.h"

namespace oscar {

// Throws Error(kUnsupported) naming `where` (the file that the shapes come from), the layer and the
// head dim when some layer's keys or values cannot be packed.
void RequirePackable(const std::map<int, LayerShape>& layers, const std::string& where);

// codes [dim] in 0..3 to packed [dim / 4]: byte i holds code i in bits 0-1, i + dim/4 in bits 2-3,
// i + dim/2 in bits 4-5 and i + 3 dim/4 in bits 6-7. dim must be a multiple of 4. Only the two low
// bits of a code are stored, so that no code can reach into a neighbour.
void PackQuarters(const uint8_t* codes, int64_t dim, uint8_t* packed);

// The inverse: packed [dim / 4] to codes [dim].
void UnpackQuarters(const uint8_t* packed, int64_t dim, uint8_t* codes);

}  // namespace oscar
