// The pickle of a value as torch.save writes it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oscar/torchfile/torchfile.h"

namespace oscar {

struct PickledTorchValue {
  std::string pickle;  // protocol 2
  // Content of storage i, which the pickle calls by the decimal number i.
  std::vector<std::span<const uint8_t>> storages;
};

PickledTorchValue PickleTorch(const TorchOut& value);

}  // namespace oscar
