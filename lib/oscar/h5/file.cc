#include "oscar/h5/file.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "oscar/h5/internal.h"

namespace oscar {

using h5::Check;
using h5::Own;
using h5::Session;

namespace {

H5Handle AccessProperties(const std::string& name) {
  H5Handle access =
      Own(H5Pcreate(H5P_FILE_ACCESS), h5::CloseProperties, ErrorCode::kIo, "open", name);
  const auto check = [&](herr_t status) { Check(status, ErrorCode::kIo, "open", name); };
  // Fixed bounds: the same bytes whatever newer library writes them, readable from HDF5 1.8 on.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18));
#if H5_VERSION_GE(1, 10, 7) && !(H5_VERS_MINOR == 12 && H5_VERS_RELEASE == 0)
  // Files are published by rename and never changed afterwards, and some file systems cannot lock.
  check(H5Pset_file_locking(access.get(), false, true));
#endif
  return access;
}

H5Handle OpenRoot(const H5Handle& file, const std::string& name) {
  return Own(H5Gopen2(file.get(), "/", H5P_DEFAULT), h5::CloseGroup, ErrorCode::kFormat,
             "open the root group of", name);
}

}  // namespace

H5File::H5File(H5Handle file, H5Handle root, std::string name)
    : H5Group(std::move(root), std::move(name), ""), file_(std::move(file)) {}

H5File H5File::Create(const std::filesystem::path& path) {
  const Session session;
  const std::string name = path.string();
  const H5Handle access = AccessProperties(name);
  const H5Handle creation =
      Own(H5Pcreate(H5P_FILE_CREATE), h5::CloseProperties, ErrorCode::kIo, "create", name);
  Check(H5Pset_obj_track_times(creation.get(), false), ErrorCode::kIo, "create", name);
  H5Handle file = Own(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
                      h5::CloseFile, ErrorCode::kIo, "create", name);
  H5Handle root = OpenRoot(file, name);
  return {std::move(file), std::move(root), name};
}

H5File H5File::Open(const std::filesystem::path& path) {
  const Session session;
  const std::string name = path.string();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::is_regular_file(status)) {
    const char* what = std::filesystem::is_directory(status) ? "is a folder" : "no such file";
    throw Error(ErrorCode::kIo, fmt::format("cannot open {}: {}", name, what));
  }
  if (!IsH5File(path)) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{} is not an HDF5 file (no HDF5 signature at its start)", name));
  }
  const H5Handle access = AccessProperties(name);
  H5Handle file = Own(H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.get()), h5::CloseFile,
                      ErrorCode::kFormat, "open", name);
  H5Handle root = OpenRoot(file, name);
  return {std::move(file), std::move(root), name};
}

void H5File::Close() {
  const Session session;
  OSCAR_CHECK(file_.get() >= 0);
  const std::string name = where();
  CloseGroup();
  // Flushing first reports what closing alone would swallow.
  Check(H5Fflush(file_.get(), H5F_SCOPE_LOCAL), ErrorCode::kIo, "write", name);
  Check(H5Fclose(file_.Release()), ErrorCode::kIo, "close", name);
}

bool IsH5File(const std::filesystem::path& path) {
  const Session session;
  const htri_t answer = H5Fis_hdf5(path.c_str());
  H5Eclear2(H5E_DEFAULT);
  return answer > 0;
}

}  // namespace oscar
