// Whether a tensor of a file lies inside its storage.
#pragma once

#include <string>

#include "oscar/torchfile/torchfile.h"

namespace oscar {

// Empty when every element lies inside the storage, counts are computable, and elements are not
// repeated (stride 0) beyond PickleLimits::kRepeatedElements; otherwise what is wrong.
std::string DescribeMisfit(const TorchTensor& tensor);

}  // namespace oscar
