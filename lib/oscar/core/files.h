// Files and folders that appear whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// A read-only memory map of a whole file. Movable; unmapped on destruction.
class MappedFile {
 public:
  // Throws Error(kIo) naming the file. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that the pages of this range will not be needed again soon.
  void Release(size_t offset, size_t length) const;

 private:
  std::filesystem::path path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Whole content of a text file. Throws Error(kIo).
std::string ReadTextFile(const std::filesystem::path& path);

// Name of a temporary sibling, `<path>.tmp-<pid>`, on the same file system.
std::filesystem::path TemporarySibling(const std::filesystem::path& path);

// Flushes a file or a folder to disk. Throws Error(kIo).
void SyncPath(const std::filesystem::path& path);

// Syncs `temporary`, renames it to `final` and syncs the parent folder. An existing `final` is
// replaced only when it is a file or `replace` is true. Throws Error(kIo).
void Publish(const std::filesystem::path& temporary, const std::filesystem::path& final,
             bool replace);

// Writes a text file through a temporary sibling; never replaces a folder. Throws Error(kIo).
void WriteTextFile(const std::filesystem::path& path, std::string_view text);

struct TextFile {
  std::filesystem::path path;
  std::string text;
};
// Writes several text files, all or none: every one is on disk under a temporary name before the
// first gets its own, and when one cannot have its name the earlier ones get back what they
// replaced. Two exceptions: a process killed between two renames leaves the earlier files, and a
// file system without hard links leaves what was replaced replaced. Throws Error(kIo).
void WriteTextFiles(const std::vector<TextFile>& files);

// Removes a temporary file or folder when the scope ends, unless Keep() was called.
class TemporaryGuard {
 public:
  explicit TemporaryGuard(std::filesystem::path path) : path_(std::move(path)) {}
  TemporaryGuard(const TemporaryGuard&) = delete;
  TemporaryGuard& operator=(const TemporaryGuard&) = delete;
  ~TemporaryGuard();
  void Keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

}  // namespace oscar
