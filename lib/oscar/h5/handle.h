// Ownership of one HDF5 identifier. The HDF5 headers themselves stay inside this module's sources.
#pragma once

#include <cstdint>
#include <utility>

namespace oscar {

// A file, group, dataset, type, dataspace, attribute or property list, closed when the object goes.
class H5Handle {
 public:
  using Close = int (*)(int64_t);

  H5Handle() = default;
  // Takes over `id` (must be valid); `close` is the matching H5?close function.
  H5Handle(int64_t id, Close close) : id_(id), close_(close) {}
  H5Handle(H5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(std::exchange(other.close_, nullptr)) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  H5Handle(const H5Handle&) = delete;
  H5Handle& operator=(const H5Handle&) = delete;
  ~H5Handle();

  int64_t get() const { return id_; }
  // Gives the identifier up without closing it.
  int64_t Release() { return std::exchange(id_, -1); }

 private:
  int64_t id_ = -1;
  Close close_ = nullptr;
};

}  // namespace oscar
