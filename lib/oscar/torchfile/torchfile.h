// PyTorch `.pt` files (zip + pickle) without LibTorch: a restricted reader that never executes
// anything, and a writer whose files torch.load(weights_only=True) reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/files.h"

namespace oscar {

// A tensor of a file: a strided window into a storage that lies in the mapped file (or in memory
// for compressed members).
struct TorchTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  int64_t storage_offset = 0;    // in elements
  int64_t storage_elements = 0;
  std::string storage_key;            // tensors with the same key share a storage
  std::shared_ptr<const void> owner;  // keeps `storage` alive
  const uint8_t* storage = nullptr;

  int64_t elements() const;
  bool contiguous() const;
  // Pointer to the first element when contiguous; OSCAR_CHECK otherwise. Aligned for `dtype`.
  const uint8_t* ContiguousData() const;
  // Elements in row-major order, converted; any stride (bool becomes 0/1). ToInts throws
  // Error(kUnsupported) for floating types.
  std::vector<float> ToFloats() const;
  std::vector<double> ToDoubles() const;
  std::vector<int64_t> ToInts() const;
};

// The pickled object graph, restricted to what tensors in plain containers need.
class TorchValue {
 public:
  using List = std::vector<TorchValue>;                         // lists and tuples
  using Dict = std::vector<std::pair<TorchValue, TorchValue>>;  // insertion order kept

  std::variant<std::monostate, bool, int64_t, double, std::string, TorchTensor,
               std::shared_ptr<List>, std::shared_ptr<Dict>>
      data;

  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data); }
  bool is_tensor() const { return std::holds_alternative<TorchTensor>(data); }
  // Dict member by string key, or nullptr.
  const TorchValue* Find(const std::string& key) const;
};

struct TorchReadOptions {
  // Compare the CRC-32 of every storage that is read (structure and pickle are always compared).
  // Costs one pass over the file; importers of large dumps may switch it off, as torch.load does.
  bool check_storage_crc = true;
};

// Reads a whole file. Accepts any archive root name, stored or deflated members, byteorder little.
// Throws Error(kIo / kFormat / kUnsupported) naming file, member, pickle offset and reason; unknown
// GLOBALs are refused by name, shapes that lie about their storage are refused.
// Stored members are not copied: tensors point into the memory map and keep it alive.
TorchValue ReadTorchFile(const std::filesystem::path& path, const TorchReadOptions& options = {});

// A float32 / bf16 / int32 / ... tensor to be written, contiguous.
struct TorchTensorData {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
};

// A value to be written. Same shape as what torch.save would pickle.
class TorchOut {
 public:
  using List = std::vector<TorchOut>;
  using Dict = std::vector<std::pair<TorchOut, TorchOut>>;
  std::variant<std::monostate, bool, int64_t, double, std::string, TorchTensorData,
               std::shared_ptr<List>, std::shared_ptr<Dict>>
      data;
};

// Writes `value` as a zip of stored members, 64-byte aligned, archive root `root` (torch.save uses
// the file name without extension). Member order, alignment and pickle opcodes are those of
// torch.save of PyTorch 2.11. Strings and ints are pickled by value; tensors over the same bytes
// share a storage. Deterministic bytes, no time stamps. Writes directly to `path` (callers
// publish). Throws Error(kIo), or Error(kUnsupported) beyond 4 GiB.
void WriteTorchFile(const std::filesystem::path& path, const TorchOut& value,
                    const std::string& root);

}  // namespace oscar
