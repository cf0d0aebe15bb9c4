// Elements of a TorchTensor.
#include <fmt/format.h>
#include <cstring>

#include <functional>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/torchfile/torchfile.h"

namespace oscar {
namespace {

// One element in its stored type, loaded from any address.
template <typename T>
T LoadElement(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename Stored>
auto Widen(Stored value) {
  if constexpr (std::is_same_v<Stored, BFloat16> || std::is_same_v<Stored, Float16>) {
    return ToFloat(value);
  } else {
    return value;
  }
}

// Calls visit(element) for all elements in row-major order.
template <typename Stored, typename Visit>
void ForEach(const TorchTensor& tensor, const Visit& visit) {
  const auto at = [&](int64_t index) {
    return LoadElement<Stored>(tensor.storage + index * static_cast<int64_t>(sizeof(Stored)));
  };
  const int64_t count = tensor.elements();
  if (tensor.contiguous()) {
    for (int64_t i = 0; i < count; ++i) visit(at(tensor.storage_offset + i));
    return;
  }
  const size_t rank = tensor.shape.size();  // at least 1: a scalar is contiguous
  std::vector<int64_t> index(rank, 0);
  int64_t row = tensor.storage_offset;
  const int64_t inner = tensor.shape[rank - 1];
  for (int64_t done = 0; done < count; done += inner) {
    for (int64_t i = 0; i < inner; ++i) visit(at(row + i * tensor.strides[rank - 1]));
    for (size_t axis = rank - 1; axis-- > 0;) {
      row += tensor.strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      row -= index[axis] * tensor.strides[axis];
      index[axis] = 0;
    }
  }
}

template <typename Visit>
void Dispatch(const TorchTensor& tensor, const Visit& visit) {
  switch (tensor.dtype) {
    case DType::kF64:
      return ForEach<double>(tensor, visit);
    case DType::kF32:
      return ForEach<float>(tensor, visit);
    case DType::kF16:
      return ForEach<Float16>(tensor, visit);
    case DType::kBF16:
      return ForEach<BFloat16>(tensor, visit);
    case DType::kI64:
      return ForEach<int64_t>(tensor, visit);
    case DType::kI32:
      return ForEach<int32_t>(tensor, visit);
    case DType::kI16:
      return ForEach<int16_t>(tensor, visit);
    case DType::kI8:
      return ForEach<int8_t>(tensor, visit);
    case DType::kU8:
      return ForEach<uint8_t>(tensor, visit);
    // Any non-zero byte is true, as in PyTorch.
    case DType::kBool:
      return ForEach<uint8_t>(tensor, [&](uint8_t x) { visit(static_cast<uint8_t>(x != 0)); });
  }
}

template <typename T>
std::vector<T> Convert(const TorchTensor& tensor) {
  std::vector<T> result;
  result.resize(static_cast<size_t>(tensor.elements()));
  T* out = result.data();
  Dispatch(tensor, [&out](auto x) { *out++ = static_cast<T>(Widen(x)); });
  return result;
}

}  // namespace

int64_t TorchTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

bool TorchTensor::contiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

const uint8_t* TorchTensor::ContiguousData() const {
  OSCAR_CHECK(contiguous());
  return storage + storage_offset * static_cast<int64_t>(DTypeSize(dtype));
}

std::vector<float> TorchTensor::ToFloats() const { return Convert<float>(*this); }

std::vector<double> TorchTensor::ToDoubles() const { return Convert<double>(*this); }

std::vector<int64_t> TorchTensor::ToInts() const {
  const bool floating =
      dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  if (floating) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("expected a tensor of integers, found {}", DTypeName(dtype)));
  }
  return Convert<int64_t>(*this);
}

}  // namespace oscar
