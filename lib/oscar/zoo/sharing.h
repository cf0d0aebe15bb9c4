// Tensors of a file that share a storage.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/torchfile/torchfile.h"

namespace oscar {

struct NamedTensor {
  std::string name;
  TorchTensor tensor;
};

// Tensors over one storage must be the same view of it (the official Hadamard files alias one
// matrix for all layers) or lie apart, and no tensor may use a storage element twice; anything
// else means that the file is not what its shapes say. Throws Error(kFormat) naming the tensors.
void CheckSharedStorages(const std::vector<NamedTensor>& tensors,
                         const std::filesystem::path& path);

}  // namespace oscar
