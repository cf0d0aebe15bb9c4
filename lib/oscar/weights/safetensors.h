// safetensors files: one, or several shards with an index.
#pragma once

#include <filesystem>

#include "oscar/weights/tensor_set.h"

namespace oscar {

// Maps model.safetensors, or the shards of model.safetensors.index.json, of a Hugging Face folder.
// Throws Error(kIo) for a missing file, Error(kFormat) naming file and tensor for a damaged header,
// ranges that overlap, leave gaps or do not fit shape and type, and for an index that disagrees
// with its shards; Error(kUnsupported) for a folder that holds weights in another format only.
TensorSet OpenSafetensors(const std::filesystem::path& folder);

}  // namespace oscar
