// Zip archives as torch.save and ordinary zip programs write them, read from a memory map.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/files.h"

namespace oscar {

// Bytes and what keeps them alive.
struct OwnedBytes {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;
};

// One file inside an archive, as its central directory and its local header agree to describe it.
struct ZipMember {
  std::string name;
  uint16_t method = 0;  // 0 stored, 8 deflated
  uint32_t crc = 0;
  uint64_t compressed_bytes = 0;
  uint64_t bytes = 0;
  uint64_t header_offset = 0;  // of the local header in the file
  uint64_t data_offset = 0;    // of the (compressed) content in the file
};

// An archive whose structure has been checked as a whole: directory and members lie inside the
// file, members do not overlap, names are unique, local headers agree with the directory, methods
// are stored or deflated, nothing is encrypted or split. Zip64 is understood. Not thread-safe.
class ZipReader {
 public:
  // Largest sum of inflated members of one archive; stored members cost no memory.
  static constexpr uint64_t kMaxInflatedBytes = uint64_t{2} << 30;

  // Maps the file. Throws Error(kIo) when it cannot be opened, Error(kFormat / kUnsupported) naming
  // file, member and offset when it is no acceptable zip archive.
  explicit ZipReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_->path(); }
  const std::vector<ZipMember>& members() const { return members_; }
  // nullptr when there is no such member.
  const ZipMember* Find(std::string_view name) const;

  // Content of a member. Stored members are not copied unless their place in the file is not a
  // multiple of `alignment` (a power of two up to 16). Throws Error(kFormat) when the content
  // does not inflate to exactly the declared size or, with `check_crc`, has another CRC-32.
  OwnedBytes Read(const ZipMember& member, bool check_crc, size_t alignment);

  // Throws Error(code) with the file, the member and a file offset in its message.
  [[noreturn]] void Fail(ErrorCode code, std::string_view member, uint64_t offset,
                         std::string_view what) const;

 private:
  struct Directory {
    uint64_t offset = 0, bytes = 0, entries = 0;
  };
  Directory FindDirectory() const;
  void ReadZip64(uint64_t end_offset, Directory& directory) const;
  void ReadDirectory(const Directory& directory);
  void ReadZip64Extra(std::span<const uint8_t> extra, uint64_t offset, ZipMember& member) const;
  void CheckLocalHeader(ZipMember& member, uint16_t flags, uint64_t limit) const;
  void CheckDisjoint() const;
  OwnedBytes Inflate(const ZipMember& member);
  std::span<const uint8_t> bytes() const { return file_->bytes(); }

  std::shared_ptr<const MappedFile> file_;
  std::vector<ZipMember> members_;
  uint64_t inflated_bytes_ = 0;
};

}  // namespace oscar
