#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "oscar/h5/internal.h"

namespace oscar {

using h5::Check;
using h5::Own;
using h5::Session;

namespace {

// More bytes than this per stored byte cannot come out of HDF5's deflate filter (limit 1032:1).
constexpr hsize_t kLargestRatio = 1100;

H5Handle SpaceOf(const H5Handle& dataset, const std::string& where) {
  return Own(H5Dget_space(dataset.get()), h5::CloseSpace, ErrorCode::kFormat, "read the shape of",
             where);
}

H5Handle FileTypeOf(const H5Handle& dataset, const std::string& where) {
  return Own(H5Dget_type(dataset.get()), h5::CloseType, ErrorCode::kFormat, "read the type of",
             where);
}

std::vector<int64_t> ShapeOf(const H5Handle& dataset, const std::string& where) {
  const H5Handle space = SpaceOf(dataset, where);
  const H5S_class_t kind = H5Sget_simple_extent_type(space.get());
  if (kind == H5S_SCALAR) return {};
  if (kind != H5S_SIMPLE) throw Error(ErrorCode::kFormat, fmt::format("{} has no shape", where));
  const int rank = Check(H5Sget_simple_extent_ndims(space.get()), ErrorCode::kFormat,
                         "read the shape of", where);
  std::vector<hsize_t> dims(static_cast<size_t>(rank));
  Check(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), ErrorCode::kFormat,
        "read the shape of", where);
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const hsize_t dim : dims) {
    int64_t n = 0;
    if (__builtin_mul_overflow(dim, uint64_t{1}, &n) ||
        __builtin_mul_overflow(elements, n, &elements) || elements > (int64_t{1} << 56)) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{} claims the impossible shape {}", where, dims));
    }
    shape.push_back(n);
  }
  return shape;
}

// Selects rows [begin, begin + count) of the leading axis.
H5Handle SelectRows(const H5Handle& dataset, const std::vector<int64_t>& shape, int64_t begin,
                    int64_t count, const std::string& where) {
  H5Handle space = SpaceOf(dataset, where);
  std::vector<hsize_t> start(shape.size(), 0);
  std::vector<hsize_t> extent(shape.begin(), shape.end());
  start[0] = static_cast<hsize_t>(begin);
  extent[0] = static_cast<hsize_t>(count);
  Check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(),
                            nullptr),
        ErrorCode::kFormat, "select rows of", where);
  return space;
}

// The memory of `count` rows, in the rank of the dataset: with another rank HDF5 walks a chunked
// selection element by element.
H5Handle RowsInMemory(const std::vector<int64_t>& shape, int64_t count, const std::string& where) {
  std::vector<hsize_t> dims(shape.begin(), shape.end());
  dims[0] = static_cast<hsize_t>(count);
  return Own(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), h5::CloseSpace,
             ErrorCode::kFormat, "shape a buffer for", where);
}

}  // namespace

H5Dataset::H5Dataset(H5Handle id, std::string where)
    : id_(std::move(id)), where_(std::move(where)) {
  const Session session;
  const H5Handle type = FileTypeOf(id_, where_);
  type_ = h5::Classify(type.get());
  shape_ = ShapeOf(id_, where_);
  const H5Handle plist = Own(H5Dget_create_plist(id_.get()), h5::CloseProperties,
                             ErrorCode::kFormat, "read the layout of", where_);
  const H5D_layout_t layout =
      Check(H5Pget_layout(plist.get()), ErrorCode::kFormat, "read the layout of", where_);
  chunked_ = layout == H5D_CHUNKED;
  if (layout == H5D_VIRTUAL || H5Pget_external_count(plist.get()) > 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} keeps its data in other files, which is refused", where_));
  }
}

int64_t H5Dataset::elements() const {
  int64_t n = 1;
  for (const int64_t dim : shape_) n *= dim;
  return n;
}

template <typename T>
void H5Dataset::CheckConvertible() const {
  bool fits = false;
  if constexpr (std::is_same_v<T, BFloat16>) {
    fits = type_ == H5Type::kBF16;
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = h5::IsFloat(type_) || h5::IsInteger(type_);
  } else if (h5::IsInteger(type_)) {
    // Narrowing would clip silently.
    const H5Handle type = FileTypeOf(id_, where_);
    const size_t size = H5Tget_size(type.get());
    const bool wide_enough =
        size < sizeof(T) || (size == sizeof(T) && h5::IsUnsigned(type_) == std::is_unsigned_v<T>);
    fits = wide_enough && (std::is_signed_v<T> || h5::IsUnsigned(type_));
  }
  if (!fits) {
    const H5Handle wanted = h5::TypeOf<T>();
    throw Error(ErrorCode::kFormat,
                fmt::format("{} holds {}, expected {}", where_, H5TypeName(type_),
                            H5TypeName(h5::Classify(wanted.get()))));
  }
}

// A shape that its stored bytes cannot fill is a lie or a truncation; found before allocating.
void H5Dataset::CheckStored() const {
  const H5Handle type = FileTypeOf(id_, where_);
  const hsize_t declared = static_cast<hsize_t>(elements()) * H5Tget_size(type.get());
  const hsize_t stored = H5Dget_storage_size(id_.get());
  const H5Handle plist = Own(H5Dget_create_plist(id_.get()), h5::CloseProperties,
                             ErrorCode::kFormat, "read the layout of", where_);
  const bool filtered = H5Pget_nfilters(plist.get()) > 0;
  const hsize_t limit = filtered ? stored * kLargestRatio : stored;
  if (declared > limit) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: shape {} needs {} bytes, the file stores {}",
                                                where_, shape_, declared, stored));
  }
}

template <typename T>
std::vector<T> H5Dataset::Read() const {
  const Session session;
  CheckConvertible<T>();
  CheckStored();
  std::vector<T> data(static_cast<size_t>(elements()));
  if (data.empty()) return data;
  const H5Handle type = h5::TypeOf<T>();
  Check(H5Dread(id_.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()),
        ErrorCode::kFormat, "read", where_);
  return data;
}

template <typename T>
std::vector<T> H5Dataset::ReadRows(int64_t begin, int64_t count) const {
  const Session session;
  CheckConvertible<T>();
  CheckStored();
  if (shape_.empty() || begin < 0 || count < 0 || begin > shape_[0] || count > shape_[0] - begin) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: rows [{}, {}) are outside the shape {}",
                                                where_, begin, begin + count, shape_));
  }
  const int64_t row = shape_[0] == 0 ? 0 : elements() / shape_[0];
  std::vector<T> data(static_cast<size_t>(row * count));
  if (data.empty()) return data;
  const H5Handle selection = SelectRows(id_, shape_, begin, count, where_);
  const H5Handle memory = RowsInMemory(shape_, count, where_);
  const H5Handle type = h5::TypeOf<T>();
  Check(H5Dread(id_.get(), type.get(), memory.get(), selection.get(), H5P_DEFAULT, data.data()),
        ErrorCode::kFormat, "read", where_);
  return data;
}

template <typename T>
void H5Dataset::WriteRows(int64_t begin, std::span<const T> data) {
  const Session session;
  if (data.empty()) return;
  OSCAR_CHECK(!shape_.empty() && shape_[0] > 0);
  const int64_t row = elements() / shape_[0];
  const int64_t size = static_cast<int64_t>(data.size());
  OSCAR_CHECK(row > 0 && size % row == 0 && begin >= 0 && begin + size / row <= shape_[0]);
  const H5Handle selection = SelectRows(id_, shape_, begin, size / row, where_);
  const H5Handle memory = RowsInMemory(shape_, size / row, where_);
  const H5Handle type = h5::TypeOf<T>();
  Check(H5Dwrite(id_.get(), type.get(), memory.get(), selection.get(), H5P_DEFAULT, data.data()),
        ErrorCode::kIo, "write", where_);
}

std::vector<std::string> H5Dataset::ReadStrings() const {
  const Session session;
  const H5Handle type = FileTypeOf(id_, where_);
  if (type_ != H5Type::kString) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{} holds {}, expected string", where_, H5TypeName(type_)));
  }
  CheckStored();
  const H5Handle space = SpaceOf(id_, where_);
  return h5::ReadText(type.get(), space.get(), static_cast<size_t>(elements()), where_,
                      [&](hid_t memory, void* out) {
                        return H5Dread(id_.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
                      });
}

namespace h5 {

std::vector<std::string> ReadText(hid_t type, hid_t space, size_t count, std::string_view where,
                                  const std::function<herr_t(hid_t, void*)>& read) {
  std::vector<std::string> texts;
  if (count == 0) return texts;
  if (Check(H5Tis_variable_str(type), ErrorCode::kFormat, "read", where) > 0) {
    const H5Handle memory = Own(H5Tcopy(type), CloseType, ErrorCode::kFormat, "read", where);
    std::vector<char*> pointers(count, nullptr);
    Check(read(memory.get(), pointers.data()), ErrorCode::kFormat, "read", where);
    for (const char* text : pointers) texts.emplace_back(text == nullptr ? "" : text);
    H5Dvlen_reclaim(memory.get(), space, H5P_DEFAULT, pointers.data());
    return texts;
  }
  const size_t size = H5Tget_size(type);
  const H5Handle memory = Own(H5Tcopy(type), CloseType, ErrorCode::kFormat, "read", where);
  std::string buffer(size * count, '\0');
  Check(read(memory.get(), buffer.data()), ErrorCode::kFormat, "read", where);
  for (size_t i = 0; i < count; ++i) {
    const std::string_view cell = std::string_view(buffer).substr(i * size, size);
    texts.emplace_back(cell.substr(0, std::min(cell.find('\0'), cell.size())));
  }
  return texts;
}

}  // namespace h5

#define OSCAR_H5_INSTANTIATE(T)                                           \
  template std::vector<T> H5Dataset::Read<T>() const;                     \
  template std::vector<T> H5Dataset::ReadRows<T>(int64_t, int64_t) const; \
  template void H5Dataset::WriteRows<T>(int64_t, std::span<const T>)
OSCAR_H5_INSTANTIATE(double);
OSCAR_H5_INSTANTIATE(float);
OSCAR_H5_INSTANTIATE(int64_t);
OSCAR_H5_INSTANTIATE(int32_t);
OSCAR_H5_INSTANTIATE(uint64_t);
OSCAR_H5_INSTANTIATE(uint16_t);
OSCAR_H5_INSTANTIATE(uint8_t);
OSCAR_H5_INSTANTIATE(BFloat16);
#undef OSCAR_H5_INSTANTIATE

}  // namespace oscar
