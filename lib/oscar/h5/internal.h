// Shared by this module's sources only.
#pragma once

#include <hdf5.h>

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/h5/file.h"
#include "oscar/h5/handle.h"

namespace oscar::h5 {

static_assert(sizeof(hid_t) == sizeof(int64_t), "H5Handle keeps identifiers as int64_t");

// Held during every entry into the HDF5 library: one thread at a time, automatic error printing
// off.
class Session {
 public:
  Session();

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// Throws Error(code, "cannot <action> <where>: <HDF5's explanation>").
[[noreturn]] void Fail(ErrorCode code, std::string_view action, std::string_view where);

// Returns `status` when it is not negative, fails otherwise.
template <typename Status>
Status Check(Status status, ErrorCode code, std::string_view action, std::string_view where) {
  if (status < 0) Fail(code, action, where);
  return status;
}

// Wraps a fresh identifier, or fails.
H5Handle Own(hid_t id, H5Handle::Close close, ErrorCode code, std::string_view action,
             std::string_view where);

// Adapters with the signature that H5Handle wants.
int CloseFile(int64_t id);
int CloseGroup(int64_t id);
int CloseDataset(int64_t id);
int CloseType(int64_t id);
int CloseSpace(int64_t id);
int CloseAttribute(int64_t id);
int CloseProperties(int64_t id);

// Type in files, little-endian, for each supported T; also the memory type.
template <typename T>
H5Handle TypeOf();
// Fixed-length, null-padded UTF-8 of `size` bytes.
H5Handle FixedText(size_t size);
H5Type Classify(hid_t type);
bool IsFloat(H5Type type);
bool IsInteger(H5Type type);
bool IsUnsigned(H5Type type);
// Strings stored in a dataset or attribute of the given type and count; `read` fills a buffer of
// the given memory type.
std::vector<std::string> ReadText(hid_t type, hid_t space, size_t count, std::string_view where,
                                  const std::function<herr_t(hid_t, void*)>& read);

}  // namespace oscar::h5
