// HDF5 files, groups, datasets and attributes: the only door to the HDF5 library.
//
// Every call is checked and a failure throws Error with HDF5's own explanation, the file and the
// object. Written files are byte-stable: no creation times, fixed format bounds (readable by every
// HDF5 from 1.8 on), fixed-length strings, zero-filled chunks, little-endian types. All functions
// are serialised by one lock, so objects may be used from several threads.
//
// T is one of double, float, int64_t, int32_t, uint64_t, uint16_t, uint8_t and BFloat16. bfloat16
// is stored as a custom HDF5 float type, so that every HDF5 client reads it as floats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/h5/handle.h"

namespace oscar {

// Element type of a stored dataset, whatever its byte order.
enum class H5Type {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kString,
  kOther
};
std::string_view H5TypeName(H5Type type);

class H5Dataset {
 public:
  H5Type type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }  // empty for a scalar
  int64_t elements() const;
  bool chunked() const { return chunked_; }
  const std::string& where() const { return where_; }  // "<file>:<path>"

  // All elements, row-major. Numbers are converted by HDF5: any number to a float type, integers
  // to wider integers. BFloat16 reads raw bits and wants a bfloat16 dataset. Throws Error(kFormat)
  // when the stored type does not convert, when stored bytes are missing or damaged.
  template <typename T>
  std::vector<T> Read() const;
  // Rows [begin, begin + count) of the leading axis. Throws Error(kFormat) when out of range.
  template <typename T>
  std::vector<T> ReadRows(int64_t begin, int64_t count) const;
  std::vector<std::string> ReadStrings() const;

  // Writes rows starting at `begin`; data holds whole rows. Throws Error(kIo).
  template <typename T>
  void WriteRows(int64_t begin, std::span<const T> data);

 private:
  friend class H5Group;
  H5Dataset(H5Handle id, std::string where);
  template <typename T>
  void CheckConvertible() const;
  void CheckStored() const;

  H5Handle id_;
  std::string where_;
  H5Type type_ = H5Type::kOther;
  std::vector<int64_t> shape_;
  bool chunked_ = false;
};

class H5Group {
 public:
  const std::string& where() const { return where_; }

  // Whether an object of any kind lies at a relative path such as "layers/3/rows".
  bool Has(const std::string& path) const;
  bool HasDataset(const std::string& path) const;
  // Names of the direct children, sorted.
  std::vector<std::string> GroupNames() const;
  std::vector<std::string> DatasetNames() const;

  // Throws Error(kFormat) naming the file and the missing path. Links into other files are refused.
  H5Group Group(const std::string& path) const;
  H5Dataset Dataset(const std::string& path) const;
  // Dataset(path).Read<T>().
  template <typename T>
  std::vector<T> Read(const std::string& path) const {
    return Dataset(path).Read<T>();
  }
  // The same, and throws Error(kFormat) with both shapes unless the shape is `shape`.
  template <typename T>
  std::vector<T> Read(const std::string& path, const std::vector<int64_t>& shape) const;

  // `name` is a direct child that does not exist yet.
  H5Group CreateGroup(const std::string& name);
  // chunk_rows > 0: chunks of so many rows of the leading axis (at most all); 0: contiguous.
  template <typename T>
  H5Dataset CreateDataset(const std::string& name, const std::vector<int64_t>& shape,
                          int64_t chunk_rows = 0);
  template <typename T>
  void Write(const std::string& name, std::span<const T> data, const std::vector<int64_t>& shape,
             int64_t chunk_rows = 0);
  // One-dimensional, fixed-length UTF-8.
  void WriteStrings(const std::string& name, const std::vector<std::string>& data);

  std::vector<std::string> AttributeNames() const;  // sorted
  bool HasAttribute(const std::string& name) const;
  // Scalar attributes (or arrays of one). Throws Error(kFormat) when absent or of another kind.
  double RealAttribute(const std::string& name) const;
  int64_t IntAttribute(const std::string& name) const;
  std::string TextAttribute(const std::string& name) const;
  // Attributes of a dataset of this group.
  std::string TextAttribute(const std::string& dataset, const std::string& name) const;

  void SetAttribute(const std::string& name, double value);
  void SetAttribute(const std::string& name, int64_t value);
  void SetAttribute(const std::string& name, std::string_view value);
  void SetAttribute(const std::string& name, const char* value) {
    SetAttribute(name, std::string_view(value));
  }
  void SetAttribute(const std::string& name, int value) {
    SetAttribute(name, static_cast<int64_t>(value));
  }

 protected:
  H5Group(H5Handle id, std::string file, std::string path);
  int64_t id() const { return id_.get(); }
  void CloseGroup() { id_ = {}; }

 private:
  std::vector<std::string> Children(bool groups) const;
  std::string PathOf(const std::string& name) const;

  H5Handle id_;
  std::string file_;  // name of the file, for messages
  std::string path_;  // absolute path inside the file, "" for the root
  std::string where_;
};

// A file is its own root group.
class H5File : public H5Group {
 public:
  // Replaces an existing file. Throws Error(kIo).
  static H5File Create(const std::filesystem::path& path);
  // Read-only. Throws Error(kIo) when the file cannot be opened, Error(kFormat) when it is no HDF5
  // file or is truncated.
  static H5File Open(const std::filesystem::path& path);

  // Writes everything out and closes the file; the object must not be used afterwards. A file
  // written without Close() is closed by the destructor, which cannot report a full disk.
  void Close();

 private:
  H5File(H5Handle file, H5Handle root, std::string name);

  H5Handle file_;
};

// Whether the file starts like an HDF5 file; false when it cannot be read.
bool IsH5File(const std::filesystem::path& path);

// Version of the HDF5 library in use, "1.10.8".
std::string H5LibraryVersion();

}  // namespace oscar
