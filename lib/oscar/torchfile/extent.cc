#include "oscar/torchfile/extent.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/printable.h"
#include "oscar/torchfile/pickle_reader.h"

namespace oscar {
namespace {

struct Reach {
  int64_t last = 0;      // storage index of the last element
  int64_t elements = 1;  // zero extents aside
  bool empty = false;
  bool overflow = false;
};

Reach ReachOf(const TorchTensor& tensor) {
  Reach reach;
  reach.last = tensor.storage_offset;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) {
      reach.empty = true;
      continue;
    }
    int64_t step = 0;
    reach.overflow |= __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step);
    reach.overflow |= __builtin_add_overflow(reach.last, step, &reach.last);
    reach.overflow |= __builtin_mul_overflow(reach.elements, tensor.shape[i], &reach.elements);
  }
  return reach;
}

std::string Describe(const TorchTensor& tensor) {
  return fmt::format("shape [{}] with strides [{}] at offset {}", fmt::join(tensor.shape, ", "),
                     fmt::join(tensor.strides, ", "), tensor.storage_offset);
}

}  // namespace

std::string DescribeMisfit(const TorchTensor& tensor) {
  if (tensor.shape.size() != tensor.strides.size()) {
    return Describe(tensor) + ": as many strides as dimensions expected";
  }
  const Reach reach = ReachOf(tensor);
  const bool outside = reach.empty ? tensor.storage_offset > tensor.storage_elements
                                   : reach.last >= tensor.storage_elements;
  if (reach.overflow || outside) {
    return fmt::format("{} does not fit into storage {} of {} elements", Describe(tensor),
                       Printable(tensor.storage_key), tensor.storage_elements);
  }
  const int64_t most = std::max(tensor.storage_elements, PickleLimits::kRepeatedElements);
  if (!reach.empty && reach.elements > most) {
    return fmt::format("{} repeats a storage of {} elements too often", Describe(tensor),
                       tensor.storage_elements);
  }
  return "";
}

}  // namespace oscar
