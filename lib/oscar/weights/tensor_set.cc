#include "oscar/weights/tensor_set.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/weights/message.h"

namespace oscar {

size_t TensorSet::AddFile(MappedFile file) {
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

void TensorSet::AddTensor(const std::string& name, StoredTensor tensor) {
  const MappedFile& file = files_[tensor.file];
  const uint64_t size = file.bytes().size();
  if (tensor.offset > size || tensor.bytes > size - tensor.offset) {
    throw Error(
        ErrorCode::kFormat,
        Message(file.path().string(), ": tensor ", Quoted(name), " lies at bytes ", tensor.offset,
                " to ", tensor.offset, " + ", tensor.bytes, ", but the file ends at ", size),
        "the file is truncated or damaged; fetch it again");
  }
  const auto [it, inserted] = tensors_.emplace(name, std::move(tensor));
  if (!inserted) {
    throw Error(ErrorCode::kFormat,
                Message(file.path().string(), ": tensor ", Quoted(name), " is stored twice"));
  }
}

void TensorSet::CheckOverlaps() const {
  using Range = std::tuple<size_t, uint64_t, uint64_t, const std::string*>;
  std::vector<Range> ranges;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.bytes > 0) {
      ranges.emplace_back(tensor.file, tensor.offset, tensor.offset + tensor.bytes, &name);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    const auto& [file, begin, end, name] = ranges[i - 1];
    const auto& [next_file, next_begin, next_end, next_name] = ranges[i];
    if (file == next_file && next_begin < end) {
      throw Error(ErrorCode::kFormat,
                  Message(files_[file].path().string(), ": the bytes of tensors ", Quoted(*name),
                          " and ", Quoted(*next_name), " overlap"));
    }
  }
}

const StoredTensor* TensorSet::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void TensorSet::ReadRows(const std::string& name, const StoredTensor& tensor, int64_t begin,
                         int64_t end, float* out) const {
  if (begin == end) return;
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  OSCAR_CHECK(tensor.supported && rows > 0 && 0 <= begin && begin <= end && end <= rows);
  const int64_t cols = ElementCount(tensor.shape) / rows;
  const int64_t row_bytes = static_cast<int64_t>(tensor.bytes) / rows;
  const uint8_t* data = files_[tensor.file].bytes().data() + tensor.offset;
  const int64_t count = (end - begin) * cols;
  Dequantise(tensor.type, data + begin * row_bytes, count, out);
  const int64_t bad = FirstNonFinite(out, count);
  if (bad >= 0) {
    throw Error(ErrorCode::kNumeric,
                Message(FileOf(tensor).string(), ": tensor ", Quoted(name), " holds ", out[bad],
                        " in row ", begin + bad / cols, ", column ", bad % cols));
  }
}

void TensorSet::Release(const StoredTensor& tensor) const {
  files_[tensor.file].Release(tensor.offset, tensor.bytes);
}

int64_t ElementCount(const std::vector<int64_t>& shape) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t count = 1;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) return -1;
    if (dim == 0) {
      empty = true;
    } else if (count > kLimit / dim) {
      return -1;
    } else {
      count *= dim;
    }
  }
  return empty ? 0 : count;
}

}  // namespace oscar
