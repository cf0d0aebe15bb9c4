#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "oscar/h5/internal.h"

namespace oscar {

using h5::Check;
using h5::Own;
using h5::Session;

namespace {

herr_t Append(hid_t, const char* name, const H5L_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

std::vector<std::string> Split(const std::string& path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

enum class Found { kNothing, kObject, kForeign };

// Walks a relative path link by link: HDF5 only answers for the last component, and a link into
// another file would open that file.
Found Look(hid_t group, const std::string& path) {
  std::string prefix;
  for (const std::string& part : Split(path)) {
    prefix += prefix.empty() ? part : "/" + part;
    if (H5Lexists(group, prefix.c_str(), H5P_DEFAULT) <= 0) return Found::kNothing;
    H5L_info_t info;
    if (H5Lget_info(group, prefix.c_str(), &info, H5P_DEFAULT) < 0) return Found::kNothing;
    if (info.type != H5L_TYPE_HARD) return Found::kForeign;
  }
  return Found::kObject;
}

H5I_type_t KindOf(hid_t group, const std::string& path) {
  const hid_t id = H5Oopen(group, path.c_str(), H5P_DEFAULT);
  if (id < 0) return H5I_BADID;
  const H5I_type_t kind = H5Iget_type(id);
  H5Oclose(id);
  return kind;
}

// Opens `path` if it is an object of the given kind.
void RequireKind(hid_t group, const std::string& path, H5I_type_t kind, const std::string& where) {
  const char* noun = kind == H5I_GROUP ? "group" : "dataset";
  switch (Look(group, path)) {
    case Found::kNothing:
      throw Error(ErrorCode::kFormat, fmt::format("{}: no such {}", where, noun));
    case Found::kForeign:
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} is a soft or external link, which is refused", where));
    case Found::kObject:
      break;
  }
  const H5I_type_t found = KindOf(group, path);
  if (found == H5I_BADID) h5::Fail(ErrorCode::kFormat, "open", where);
  if (found != kind) throw Error(ErrorCode::kFormat, fmt::format("{} is not a {}", where, noun));
}

H5Handle CreationProperties(hid_t kind, const std::string& where) {
  H5Handle list = Own(H5Pcreate(kind), h5::CloseProperties, ErrorCode::kIo, "create", where);
  Check(H5Pset_obj_track_times(list.get(), false), ErrorCode::kIo, "create", where);
  return list;
}

}  // namespace

H5Group::H5Group(H5Handle id, std::string file, std::string path)
    : id_(std::move(id)),
      file_(std::move(file)),
      path_(std::move(path)),
      where_(path_.empty() ? file_ : file_ + ":" + path_) {}

std::string H5Group::PathOf(const std::string& name) const {
  return fmt::format("{}:{}/{}", file_, path_, name);
}

bool H5Group::Has(const std::string& path) const {
  const Session session;
  return Look(id(), path) == Found::kObject;
}

bool H5Group::HasDataset(const std::string& path) const {
  const Session session;
  return Look(id(), path) == Found::kObject && KindOf(id(), path) == H5I_DATASET;
}

std::vector<std::string> H5Group::Children(bool groups) const {
  const Session session;
  std::vector<std::string> names;
  hsize_t position = 0;
  Check(H5Literate(id(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, Append, &names),
        ErrorCode::kFormat, "list", where_);
  std::erase_if(names, [&](const std::string& name) {
    return Look(id(), name) != Found::kObject ||
           KindOf(id(), name) != (groups ? H5I_GROUP : H5I_DATASET);
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> H5Group::GroupNames() const { return Children(true); }
std::vector<std::string> H5Group::DatasetNames() const { return Children(false); }

H5Group H5Group::Group(const std::string& path) const {
  const Session session;
  const std::string where = PathOf(path);
  RequireKind(id(), path, H5I_GROUP, where);
  return {Own(H5Gopen2(id(), path.c_str(), H5P_DEFAULT), h5::CloseGroup, ErrorCode::kFormat, "open",
              where),
          file_, path_ + "/" + path};
}

H5Dataset H5Group::Dataset(const std::string& path) const {
  const Session session;
  const std::string where = PathOf(path);
  RequireKind(id(), path, H5I_DATASET, where);
  return {Own(H5Dopen2(id(), path.c_str(), H5P_DEFAULT), h5::CloseDataset, ErrorCode::kFormat,
              "open", where),
          where};
}

template <typename T>
std::vector<T> H5Group::Read(const std::string& path, const std::vector<int64_t>& shape) const {
  const H5Dataset dataset = Dataset(path);
  if (dataset.shape() != shape) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: expected shape {}, found {}", dataset.where(),
                                                shape, dataset.shape()));
  }
  return dataset.Read<T>();
}

H5Group H5Group::CreateGroup(const std::string& name) {
  const Session session;
  const std::string where = PathOf(name);
  const H5Handle properties = CreationProperties(H5P_GROUP_CREATE, where);
  return {Own(H5Gcreate2(id(), name.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
              h5::CloseGroup, ErrorCode::kIo, "create", where),
          file_, path_ + "/" + name};
}

template <typename T>
H5Dataset H5Group::CreateDataset(const std::string& name, const std::vector<int64_t>& shape,
                                 int64_t chunk_rows) {
  const Session session;
  const std::string where = PathOf(name);
  std::vector<hsize_t> dims(shape.begin(), shape.end());
  const H5Handle space =
      shape.empty() ? Own(H5Screate(H5S_SCALAR), h5::CloseSpace, ErrorCode::kIo, "shape", where)
                    : Own(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
                          h5::CloseSpace, ErrorCode::kIo, "shape", where);
  const H5Handle properties = CreationProperties(H5P_DATASET_CREATE, where);
  const bool empty = std::find(dims.begin(), dims.end(), 0U) != dims.end();
  if (chunk_rows > 0 && !shape.empty() && !empty) {
    dims[0] = std::min(dims[0], static_cast<hsize_t>(chunk_rows));
    Check(H5Pset_chunk(properties.get(), static_cast<int>(dims.size()), dims.data()),
          ErrorCode::kIo, "chunk", where);
  }
  const H5Handle type = h5::TypeOf<T>();
  // The padding of the last chunk is written too: it must not hold leftovers of memory.
  const uint64_t zero = 0;
  Check(H5Pset_fill_value(properties.get(), type.get(), &zero), ErrorCode::kIo, "create", where);
  return {Own(H5Dcreate2(id(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, properties.get(),
                         H5P_DEFAULT),
              h5::CloseDataset, ErrorCode::kIo, "create", where),
          where};
}

template <typename T>
void H5Group::Write(const std::string& name, std::span<const T> data,
                    const std::vector<int64_t>& shape, int64_t chunk_rows) {
  const Session session;
  H5Dataset dataset = CreateDataset<T>(name, shape, chunk_rows);
  OSCAR_CHECK(static_cast<int64_t>(data.size()) == dataset.elements());
  if (data.empty()) return;
  const H5Handle type = h5::TypeOf<T>();
  Check(H5Dwrite(dataset.id_.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()),
        ErrorCode::kIo, "write", dataset.where());
}

void H5Group::WriteStrings(const std::string& name, const std::vector<std::string>& data) {
  const Session session;
  const std::string where = PathOf(name);
  size_t longest = 1;
  for (const std::string& text : data) longest = std::max(longest, text.size());
  std::string cells(longest * data.size(), '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i].copy(cells.data() + i * longest, longest);
  const H5Handle type = h5::FixedText(longest);
  const hsize_t dim = data.size();
  const H5Handle space =
      Own(H5Screate_simple(1, &dim, nullptr), h5::CloseSpace, ErrorCode::kIo, "shape", where);
  const H5Handle properties = CreationProperties(H5P_DATASET_CREATE, where);
  const H5Handle dataset = Own(H5Dcreate2(id(), name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                          properties.get(), H5P_DEFAULT),
                               h5::CloseDataset, ErrorCode::kIo, "create", where);
  if (data.empty()) return;
  Check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, cells.data()),
        ErrorCode::kIo, "write", where);
}

#define OSCAR_H5_INSTANTIATE(T)                                                                    \
  template std::vector<T> H5Group::Read<T>(const std::string&, const std::vector<int64_t>&) const; \
  template H5Dataset H5Group::CreateDataset<T>(const std::string&, const std::vector<int64_t>&,    \
                                               int64_t);                                           \
  template void H5Group::Write<T>(const std::string&, std::span<const T>,                          \
                                  const std::vector<int64_t>&, int64_t)
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
