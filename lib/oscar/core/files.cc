#include "oscar/core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/outputs.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void ThrowIo(const char* action, const fs::path& path, int error) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {} {}: {}", action, path.string(),
                                          std::generic_category().message(error)));
}

// An open file descriptor.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (fd_ < 0) ThrowIo("open", path, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

void WriteNow(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) ThrowIo("create", path, errno);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) ThrowIo("write", path, errno == 0 ? EIO : errno);
}

// A file that gets new content. Unless Keep() is called, what was there comes back at the end.
class Replacement {
 public:
  explicit Replacement(const fs::path& path) : path_(path) {
    if (!fs::exists(path)) return;
    std::error_code error;
    old_ = fs::path(path.string() + fmt::format(".old-{}", ::getpid()));
    fs::create_hard_link(path, old_, error);
    if (error) old_.clear();
    existed_ = true;
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    std::error_code ignored;  // nothing more can be done while unwinding
    if (done_ && !keep_ && !old_.empty()) fs::rename(old_, path_, ignored);
    if (done_ && !keep_ && !existed_) fs::remove(path_, ignored);
    if (!old_.empty()) fs::remove(old_, ignored);
  }
  void Done() { done_ = true; }
  void Keep() { keep_ = true; }

 private:
  fs::path path_, old_;
  bool existed_ = false, done_ = false, keep_ = false;
};

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const Descriptor fd(path, O_RDONLY);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) ThrowIo("inspect", path, errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kIo, fmt::format("{} is not a regular file", path.string()));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (map == MAP_FAILED) ThrowIo("map", path, errno);
  data_ = static_cast<const uint8_t*>(map);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::Release(size_t offset, size_t length) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + length) / page * page;
  // Advice only: a failure costs memory, never correctness.
  if (end > begin) ::madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string ReadTextFile(const fs::path& path) {
  if (fs::is_directory(path)) ThrowIo("read", path, EISDIR);
  std::ifstream file(path, std::ios::binary);
  if (!file) ThrowIo("open", path, errno);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) ThrowIo("read", path, EIO);
  return text;
}

fs::path TemporarySibling(const fs::path& path) {
  fs::path name = path.lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  name += fmt::format(".tmp-{}", ::getpid());
  return name;
}

void SyncPath(const fs::path& path) {
  const Descriptor fd(path, O_RDONLY);
  if (::fsync(fd.get()) != 0) ThrowIo("sync", path, errno);
}

void Publish(const fs::path& temporary, const fs::path& final, bool replace) {
  if (fs::is_directory(temporary)) {
    for (const auto& entry : fs::recursive_directory_iterator(temporary)) {
      if (entry.is_regular_file()) SyncPath(entry.path());
    }
  }
  SyncPath(temporary);
  RefuseSpecialFile(final);
  fs::path old;
  if (fs::is_directory(final)) {
    if (!replace) ThrowIo("replace", final, EEXIST);
    old = final.string() + fmt::format(".old-{}", ::getpid());
    fs::rename(final, old);
  }
  std::error_code error;
  fs::rename(temporary, final, error);
  if (error) {
    if (!old.empty()) fs::rename(old, final);
    ThrowIo("rename to", final, error.value());
  }
  if (!old.empty()) fs::remove_all(old);
  const fs::path parent = final.parent_path();
  SyncPath(parent.empty() ? fs::path(".") : parent);
}

void WriteTextFile(const fs::path& path, std::string_view text) {
  const fs::path temporary = TemporarySibling(path);
  TemporaryGuard guard(temporary);
  WriteNow(temporary, text);
  Publish(temporary, path, false);
  guard.Keep();
}

void WriteTextFiles(const std::vector<TextFile>& files) {
  std::vector<std::unique_ptr<TemporaryGuard>> temporaries;
  for (const TextFile& file : files) {
    if (fs::is_directory(file.path)) ThrowIo("replace", file.path, EISDIR);
    temporaries.push_back(std::make_unique<TemporaryGuard>(TemporarySibling(file.path)));
    WriteNow(TemporarySibling(file.path), file.text);
    SyncPath(TemporarySibling(file.path));
  }
  std::vector<std::unique_ptr<Replacement>> replacements;
  for (const TextFile& file : files) {
    replacements.push_back(std::make_unique<Replacement>(file.path));
    Publish(TemporarySibling(file.path), file.path, false);
    replacements.back()->Done();
  }
  for (const auto& replacement : replacements) replacement->Keep();
}

TemporaryGuard::~TemporaryGuard() {
  if (path_.empty()) return;
  std::error_code ignored;  // nothing more can be done while unwinding
  fs::remove_all(path_, ignored);
}

}  // namespace oscar
