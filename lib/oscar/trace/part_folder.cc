#include "oscar/trace/part_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "oscar/core/error.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "lock";

void RemoveAll(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot remove {}: {}", path.string(), error.message()));
  }
}

}  // namespace

PartFolder::PartFolder(const fs::path& trace) : path_(trace.string() + ".part") {}

PartFolder::~PartFolder() {
  if (lock_ >= 0) ::close(lock_);
}

fs::path PartFolder::LayerFile(int layer) const {
  return path_ / fmt::format("layer_{}.h5", layer);
}

bool PartFolder::HasHeader() const { return fs::exists(HeaderFile()); }

void PartFolder::RefuseForeign() const {
  const auto refuse = [this](const std::string& why) {
    throw Error(ErrorCode::kIo, fmt::format("{} {}", path_.string(), why),
                "move it away, or choose another --out");
  };
  if (!fs::exists(path_)) return;
  if (!fs::is_directory(path_)) refuse("is in the way of the working folder");
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    const bool layer = name.starts_with("layer_") && name.ends_with(".h5");
    const bool own = layer || name == kLockName || name == HeaderFile().filename() ||
                     name == StateFile().filename() || name.find(".tmp-") != std::string::npos;
    if (!own) refuse(fmt::format("holds {}, which is no part of an unfinished run", name));
  }
}

void PartFolder::Claim() {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot create {}: {}", path_.string(), error.message()));
  }
  const fs::path file = path_ / kLockName;
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot open {}: {}", file.string(),
                                            std::generic_category().message(errno)));
  }
  // The kernel drops the lock with the process. File systems without locks go unguarded.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorCode::kIo, fmt::format("another process is writing {}", path_.string()),
                "wait until it is done, or choose another --out");
  }
}

void PartFolder::RemoveTemporaries() {
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) {
      stale.push_back(entry.path());
    }
  }
  for (const fs::path& path : stale) RemoveAll(path);
}

void PartFolder::Clear() {
  RemoveAll(HeaderFile());
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename() != kLockName) all.push_back(entry.path());
  }
  for (const fs::path& path : all) RemoveAll(path);
}

void PartFolder::Remove() {
  RemoveAll(HeaderFile());
  RemoveAll(path_);
}

}  // namespace oscar
