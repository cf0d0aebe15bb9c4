// The tensors of one model: named, typed ranges of memory-mapped files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/files.h"
#include "oscar/weights/tensor_type.h"

namespace oscar {

// A tensor as a file stores it.
struct StoredTensor {
  std::string type_name;   // as the file names it, for messages
  bool supported = false;  // `type` is meaningful
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;      // outermost dimension first, row-major
  size_t file = 0;                 // index into TensorSet::files()
  uint64_t offset = 0, bytes = 0;  // in that file
};

class TensorSet {
 public:
  // Takes over a mapped file; returns its index.
  size_t AddFile(MappedFile file);
  // Throws Error(kFormat) naming file and tensor when the name is taken already or the range does
  // not lie in its file.
  void AddTensor(const std::string& name, StoredTensor tensor);
  // Throws Error(kFormat) naming two tensors of one file whose bytes overlap.
  void CheckOverlaps() const;

  // nullptr when there is none.
  const StoredTensor* Find(const std::string& name) const;
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const MappedFile& file(size_t index) const { return files_[index]; }
  const std::filesystem::path& FileOf(const StoredTensor& tensor) const {
    return files_[tensor.file].path();
  }

  // float32 values of rows [begin, end) of a tensor seen as [shape[0], product of the rest].
  // The tensor must be supported and its size checked. Throws Error(kNumeric) naming file, tensor
  // and row for a value that is not finite.
  void ReadRows(const std::string& name, const StoredTensor& tensor, int64_t begin, int64_t end,
                float* out) const;
  void Release(const StoredTensor& tensor) const;

 private:
  std::vector<MappedFile> files_;
  std::map<std::string, StoredTensor> tensors_;
};

// Product of the dimensions, or -1 when one is negative or the product does not fit in 62 bits.
int64_t ElementCount(const std::vector<int64_t>& shape);

}  // namespace oscar
