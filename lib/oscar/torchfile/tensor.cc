// Elements of a TorchTensor.
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

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

// Stored booleans: any non-zero byte is true, as in PyTorch.
struct StoredBool {
  uint8_t byte;
};

template <typename Stored>
auto Widen(Stored value) {
  if constexpr (std::is_same_v<Stored, BFloat16> || std::is_same_v<Stored, Float16>) {
    return ToFloat(value);
  } else if constexpr (std::is_same_v<Stored, StoredBool>) {
    return static_cast<uint8_t>(value.byte != 0);
  } else {
    return value;
  }
}

// Elements of stored type `Stored` in row-major order, converted to T.
template <typename Stored, typename T>
void ConvertInto(const TorchTensor& tensor, T* out) {
  const auto at = [&](int64_t index) {
    const auto* source = tensor.storage + index * static_cast<int64_t>(sizeof(Stored));
    return static_cast<T>(Widen(LoadElement<Stored>(source)));
  };
  const int64_t count = tensor.elements();
  if (tensor.contiguous()) {
    for (int64_t i = 0; i < count; ++i) out[i] = at(tensor.storage_offset + i);
    return;
  }
  const size_t rank = tensor.shape.size();  // at least 1: a scalar is contiguous
  std::vector<int64_t> index(rank, 0);
  int64_t row = tensor.storage_offset;
  const int64_t inner = tensor.shape[rank - 1];
  const int64_t stride = tensor.strides[rank - 1];
  for (int64_t done = 0; done < count; done += inner) {
    for (int64_t i = 0; i < inner; ++i) out[done + i] = at(row + i * stride);
    for (size_t axis = rank - 1; axis-- > 0;) {
      row += tensor.strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      row -= index[axis] * tensor.strides[axis];
      index[axis] = 0;
    }
  }
}

template <typename T>
std::vector<T> Convert(const TorchTensor& tensor) {
  std::vector<T> result(static_cast<size_t>(tensor.elements()));
  switch (tensor.dtype) {
    case DType::kF64:
      ConvertInto<double>(tensor, result.data());
      break;
    case DType::kF32:
      ConvertInto<float>(tensor, result.data());
      break;
    case DType::kF16:
      ConvertInto<Float16>(tensor, result.data());
      break;
    case DType::kBF16:
      ConvertInto<BFloat16>(tensor, result.data());
      break;
    case DType::kI64:
      ConvertInto<int64_t>(tensor, result.data());
      break;
    case DType::kI32:
      ConvertInto<int32_t>(tensor, result.data());
      break;
    case DType::kI16:
      ConvertInto<int16_t>(tensor, result.data());
      break;
    case DType::kI8:
      ConvertInto<int8_t>(tensor, result.data());
      break;
    case DType::kU8:
      ConvertInto<uint8_t>(tensor, result.data());
      break;
    case DType::kBool:
      ConvertInto<StoredBool>(tensor, result.data());
      break;
  }
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
