#include "oscar/torchfile/zip_writer.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "oscar/core/error.h"

namespace oscar {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kLocalHeaderBytes = 30;
constexpr uint64_t kExtraHeaderBytes = 4;    // id and length of an extra field
constexpr uint64_t kMaxBytes = 0xffffffff;   // beyond it zip64 sizes would be needed
constexpr uint16_t kFlags = 0x0808;          // UTF-8 names, data descriptors
constexpr uint16_t kZip64Version = 45;       // version 4.5 of the format
constexpr uint16_t kMadeBy = (3 << 8) | 30;  // Unix, version 3.0

// Little-endian fields in order.
class Record {
 public:
  Record& U16(uint64_t value) { return Put(value, 2); }
  Record& U32(uint64_t value) { return Put(value, 4); }
  Record& U64(uint64_t value) { return Put(value, 8); }
  Record& Text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Record& Put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>((value >> (8 * i)) & 0xff);
    return *this;
  }
  std::string bytes_;
};

}  // namespace

ZipWriter::ZipWriter(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, std::ios::binary | std::ios::trunc) {
  if (!file_) {
    throw Error(ErrorCode::kIo, fmt::format("cannot create {}: {}", path_.string(),
                                            std::generic_category().message(errno)));
  }
}

void ZipWriter::Write(const void* data, size_t bytes) {
  file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  position_ += bytes;
}

void ZipWriter::Add(std::string_view name, std::string_view content) {
  Add(name, std::span(reinterpret_cast<const uint8_t*>(content.data()), content.size()));
}

void ZipWriter::Add(std::string_view name, std::span<const uint8_t> content) {
  OSCAR_CHECK(name.size() <= 0xffff);
  constexpr uint64_t kOverhead = 1024;  // more than headers, padding and descriptor of one member
  if (content.size() > kMaxBytes ||
      position_ + content.size() + name.size() + kOverhead > kMaxBytes) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot write {}: more than 4 GiB", path_.string()));
  }
  Member member;
  member.name = name;
  member.crc =
      static_cast<uint32_t>(::crc32_z(::crc32_z(0, nullptr, 0), content.data(), content.size()));
  member.bytes = static_cast<uint32_t>(content.size());
  member.header_offset = static_cast<uint32_t>(position_);
  const uint64_t unpadded = position_ + kLocalHeaderBytes + name.size() + kExtraHeaderBytes;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  Record header;
  header.Text("PK\x03\x04").U16(0).U16(kFlags).U16(0);  // version, flags, method
  header.U16(0).U16(0).U32(0).U32(0).U32(0);            // time, date, CRC, sizes: see below
  header.U16(name.size()).U16(kExtraHeaderBytes + padding).Text(name);
  header.Text("FB").U16(padding).Text(std::string(padding, 'Z'));
  Write(header.bytes());
  Write(content.data(), content.size());
  Write(Record().Text("PK\x07\x08").U32(member.crc).U32(member.bytes).U32(member.bytes).bytes());
  members_.push_back(std::move(member));
}

std::vector<uint32_t> ZipWriter::Crcs() const {
  std::vector<uint32_t> crcs;
  for (const Member& member : members_) crcs.push_back(member.crc);
  return crcs;
}

void ZipWriter::Finish() {
  const uint64_t directory = position_;
  for (const Member& member : members_) {
    Record entry;
    entry.Text("PK\x01\x02").U16(0).U16(0).U16(kFlags).U16(0).U16(0).U16(0);
    entry.U32(member.crc).U32(member.bytes).U32(member.bytes).U16(member.name.size());
    entry.U16(0).U16(0).U16(0).U16(0).U32(0);  // extra, comment, disk, attributes
    entry.U32(member.header_offset).Text(member.name);
    Write(entry.bytes());
  }
  const uint64_t end = position_;
  const uint64_t bytes = end - directory;
  const uint64_t count = members_.size();
  Record tail;
  constexpr uint64_t kRestOfZip64Record = 44;
  tail.Text("PK\x06\x06").U64(kRestOfZip64Record).U16(kMadeBy).U16(kZip64Version).U32(0).U32(0);
  tail.U64(count).U64(count).U64(bytes).U64(directory);
  tail.Text("PK\x06\x07").U32(0).U64(end).U32(1);
  const uint64_t short_count = count < 0xffff ? count : 0xffff;
  tail.Text("PK\x05\x06").U16(0).U16(0).U16(short_count).U16(short_count);
  tail.U32(bytes).U32(directory).U16(0);
  Write(tail.bytes());
  file_.close();
  if (!file_ || position_ > kMaxBytes) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write {}: {}", path_.string(),
                            std::generic_category().message(errno != 0 ? errno : EIO)));
  }
}

}  // namespace oscar
