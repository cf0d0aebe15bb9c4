#include "oscar/zoo/sharing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"

namespace oscar {
namespace {

// First and last element of the storage that a non-empty tensor touches.
std::pair<int64_t, int64_t> Extent(const TorchTensor& tensor) {
  int64_t last = tensor.storage_offset;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  return {tensor.storage_offset, last};
}

// Sufficient and, for dense matrices and their transposes and slices, necessary: walking the axes
// from the smallest stride, each stride steps over everything the smaller axes reach.
bool UsesElementsOnce(const TorchTensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, extent
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] > 1) axes.emplace_back(tensor.strides[i], tensor.shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (stride <= reach) return false;
    reach += stride * (extent - 1);
  }
  return true;
}

bool SameView(const TorchTensor& a, const TorchTensor& b) {
  return a.storage_offset == b.storage_offset && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace

void CheckSharedStorages(const std::vector<NamedTensor>& tensors,
                         const std::filesystem::path& path) {
  std::map<std::string, std::vector<const NamedTensor*>> by_storage;
  for (const NamedTensor& named : tensors) {
    if (!UsesElementsOnce(named.tensor)) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: {} repeats elements of its storage (shape [{}], strides [{}])",
                              path.string(), named.name, fmt::join(named.tensor.shape, ", "),
                              fmt::join(named.tensor.strides, ", ")));
    }
    by_storage[named.tensor.storage_key].push_back(&named);
  }
  for (auto& [key, group] : by_storage) {
    std::sort(group.begin(), group.end(), [](const NamedTensor* a, const NamedTensor* b) {
      return Extent(a->tensor) < Extent(b->tensor);
    });
    // Sorted by begin: it is enough to compare with the one that reaches furthest so far.
    const NamedTensor* furthest = nullptr;
    for (const NamedTensor* next : group) {
      if (furthest != nullptr && !SameView(furthest->tensor, next->tensor) &&
          Extent(next->tensor).first <= Extent(furthest->tensor).second) {
        throw Error(ErrorCode::kFormat,
                    fmt::format("{}: {} and {} overlap in storage {}", path.string(),
                                furthest->name, next->name, Printable(key)));
      }
      furthest = next;
    }
  }
}

}  // namespace oscar
