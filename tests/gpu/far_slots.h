// A small cache moved to slots whose byte offsets do not fit 32 bits: 2-bit rows to slots from 2^24
// on (2^32 bytes of codes at 8 heads of 128 channels), bf16 rows to slots from 2^23 on.
#pragma once

#include <sys/mman.h>

#include "gpu/decode_case.h"

namespace oscar::test {

inline constexpr int64_t kFarQuantised = int64_t{1} << 24;
inline constexpr int64_t kFarRows = (int64_t{1} << 23) + 5;

inline std::vector<int64_t> Moved(std::vector<int64_t> slots, int64_t by) {
  for (int64_t& slot : slots) slot += by;
  return slots;
}

// Host memory of which only what is touched exists. data() is null where the system refuses.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = data == MAP_FAILED ? nullptr : data;
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace oscar::test
