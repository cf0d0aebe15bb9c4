// Zip archives laid out byte for byte as torch.save lays them out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// Stored members whose content begins at multiples of 64 bytes, followed by data descriptors; no
// time stamps. The exact layout matters: torch.load can compute the places of storages from it
// instead of reading each local header. Archives up to 4 GiB.
class ZipWriter {
 public:
  // Creates or truncates `path`. Throws Error(kIo).
  explicit ZipWriter(std::filesystem::path path);

  // Throws Error(kIo), or Error(kUnsupported) when the archive would exceed 4 GiB.
  void Add(std::string_view name, std::span<const uint8_t> content);
  void Add(std::string_view name, std::string_view content);
  // CRC-32 values of the members so far, in order.
  std::vector<uint32_t> Crcs() const;
  // Writes the directory and closes the file. Throws Error(kIo).
  void Finish();

 private:
  struct Member {
    std::string name;
    uint32_t crc = 0;
    uint32_t bytes = 0;
    uint32_t header_offset = 0;
  };
  void Write(const void* data, size_t bytes);
  void Write(const std::string& bytes) { Write(bytes.data(), bytes.size()); }

  std::filesystem::path path_;
  std::ofstream file_;
  uint64_t position_ = 0;
  std::vector<Member> members_;
};

}  // namespace oscar
