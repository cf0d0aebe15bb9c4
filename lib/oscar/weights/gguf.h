// GGUF files, versions 2 and 3: metadata and tensors.
#pragma once

#include <filesystem>

#include "oscar/core/value.h"
#include "oscar/weights/tensor_set.h"

namespace oscar {

struct GgufFile {
  Value metadata;     // an object: key -> value, as the file spells the keys
  TensorSet tensors;  // shapes outermost dimension first (GGUF lists them innermost first)
};

// Maps a GGUF file. Throws Error(kIo), Error(kFormat) naming file, key or tensor for a damaged file
// (magic, counts and lengths beyond the file, repeated names, ranges that overlap), and
// Error(kUnsupported) naming it for version 1, big-endian and split files.
GgufFile OpenGguf(const std::filesystem::path& path);

}  // namespace oscar
