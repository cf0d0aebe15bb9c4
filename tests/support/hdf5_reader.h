// Reads reference files through the HDF5 C API, apart from the library's own h5 module, so that a
// mistake of the one cannot hide in the other.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace oscar::test {

template <typename T>
struct Hdf5Data {
  std::vector<int64_t> shape;
  std::vector<T> data;
};

class Hdf5Reader {
 public:
  explicit Hdf5Reader(const std::filesystem::path& path)
      : file_(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)) {
    if (file_ < 0) throw std::runtime_error("cannot open " + path.string());
  }
  ~Hdf5Reader() { H5Fclose(file_); }
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  // Names of the members of a group, in the order of their names.
  std::vector<std::string> Members(const std::string& group) const {
    std::vector<std::string> names;
    const hid_t id = H5Gopen2(file_, group.c_str(), H5P_DEFAULT);
    if (id < 0) throw std::runtime_error("no group " + group);
    H5Literate(
        id, H5_INDEX_NAME, H5_ITER_INC, nullptr,
        [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
          static_cast<std::vector<std::string>*>(out)->emplace_back(name);
          return 0;
        },
        &names);
    H5Gclose(id);
    return names;
  }

  bool Has(const std::string& path) const {
    return H5Lexists(file_, path.c_str(), H5P_DEFAULT) > 0;
  }

  template <typename T>
  Hdf5Data<T> Read(const std::string& path) const {
    const hid_t set = H5Dopen2(file_, path.c_str(), H5P_DEFAULT);
    if (set < 0) throw std::runtime_error("no dataset " + path);
    const hid_t space = H5Dget_space(set);
    hsize_t extent[8] = {};
    const int rank = H5Sget_simple_extent_dims(space, extent, nullptr);
    Hdf5Data<T> result;
    size_t count = 1;
    for (int i = 0; i < rank; ++i) {
      result.shape.push_back(static_cast<int64_t>(extent[i]));
      count *= static_cast<size_t>(extent[i]);
    }
    result.data.resize(count);
    const herr_t status =
        H5Dread(set, NativeType(T{}), H5S_ALL, H5S_ALL, H5P_DEFAULT, result.data.data());
    H5Sclose(space);
    H5Dclose(set);
    if (status < 0) throw std::runtime_error("cannot read " + path);
    return result;
  }

  template <typename T>
  T Attribute(const std::string& object, const std::string& name) const {
    const hid_t id = H5Aopen_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    if (id < 0) throw std::runtime_error("no attribute " + name + " at " + object);
    T value{};
    const herr_t status = H5Aread(id, NativeType(T{}), &value);
    H5Aclose(id);
    if (status < 0) throw std::runtime_error("cannot read attribute " + name);
    return value;
  }

 private:
  static hid_t NativeType(double) { return H5T_NATIVE_DOUBLE; }
  static hid_t NativeType(float) { return H5T_NATIVE_FLOAT; }
  static hid_t NativeType(int64_t) { return H5T_NATIVE_INT64; }
  static hid_t NativeType(int32_t) { return H5T_NATIVE_INT32; }
  static hid_t NativeType(uint16_t) { return H5T_NATIVE_UINT16; }
  static hid_t NativeType(uint8_t) { return H5T_NATIVE_UINT8; }

  hid_t file_;
};

}  // namespace oscar::test
