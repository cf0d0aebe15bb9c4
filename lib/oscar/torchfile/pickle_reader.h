// The part of Python's pickle format that tensors in plain containers need, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "oscar/torchfile/torchfile.h"
#include "oscar/torchfile/zip_reader.h"

namespace oscar {

// What a pickle may ask for at most; far above real files, far below what exhausts a machine.
struct PickleLimits {
  static constexpr uint64_t kBytes = uint64_t{64} << 20;   // of the pickle itself
  static constexpr size_t kValues = size_t{4} << 20;       // values, shared ones counted each time
  static constexpr size_t kTextBytes = size_t{128} << 20;  // of all strings, copies included
  static constexpr int kDepth = 64;                        // nested containers
  static constexpr size_t kRank = 16;                      // dimensions of a tensor
  // A tensor may repeat storage elements (stride 0), but not beyond this many elements.
  static constexpr int64_t kRepeatedElements = int64_t{1} << 27;
};

// Returns the bytes of storage `key`, which must hold `elements` elements of `dtype`.
using StorageLoader =
    std::function<OwnedBytes(const std::string& key, DType dtype, int64_t elements)>;

// Reads a pickle of protocol 2 to 5. Globals are compared with a fixed list
// (collections.OrderedDict, torch._utils._rebuild_tensor_v2, torch.<Type>Storage) and never looked
// up; every other one is refused as module.name. Throws Error(kFormat / kUnsupported) with `where`
// and the offset of the opcode.
TorchValue UnpickleTorch(std::span<const uint8_t> pickle, const std::string& where,
                         const StorageLoader& load);

}  // namespace oscar
