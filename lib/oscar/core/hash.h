// SHA-256 (FIPS 180-4): names the content of files, token sequences and configurations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

class Sha256 {
 public:
  Sha256();
  void Update(const void* data, size_t bytes);
  // Finishes and returns 64 lower-case hexadecimal digits. Call once.
  std::string Hex();

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> buffer_{};
  size_t buffered_ = 0;
  uint64_t total_bytes_ = 0;
};

std::string Sha256Hex(const void* data, size_t bytes);
std::string Sha256Hex(std::string_view text);

// Hash of a file's bytes. Throws Error(kIo) naming the file when it cannot be read.
std::string Sha256File(const std::string& path);

}  // namespace oscar
