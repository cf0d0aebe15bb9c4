#include "oscar/torchfile/zip_reader.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "oscar/core/printable.h"

namespace oscar {
namespace {

static_assert(std::endian::native == std::endian::little, "zip fields are read in place");

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kEndRecord = 0x06054b50;
constexpr uint32_t kZip64EndRecord = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr uint64_t kLocalHeaderBytes = 30;
constexpr uint64_t kDirectoryEntryBytes = 46;
constexpr uint64_t kEndRecordBytes = 22;
constexpr uint64_t kZip64EndRecordBytes = 56;
constexpr uint64_t kZip64LocatorBytes = 20;
constexpr uint16_t kEncryptedFlag = 1;
constexpr uint16_t kDataDescriptorFlag = 8;  // CRC and sizes follow the content
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;
// Deflate cannot expand by more than 1032 : 1; a larger claim is a lie.
constexpr uint64_t kMaxDeflateRatio = 1032;
constexpr uint32_t kSaturated32 = 0xffffffff;
constexpr uint16_t kSaturated16 = 0xffff;

template <typename T>
T Load(std::span<const uint8_t> bytes, uint64_t offset) {
  OSCAR_CHECK(offset <= bytes.size() && bytes.size() - offset >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// offset + length <= size without overflow.
bool Inside(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

std::string_view TextAt(std::span<const uint8_t> bytes, uint64_t offset, uint64_t length) {
  const auto part = bytes.subspan(offset, length);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

bool StartsWith(std::span<const uint8_t> bytes, std::string_view prefix, uint64_t offset = 0) {
  return Inside(offset, prefix.size(), bytes.size()) &&
         TextAt(bytes, offset, prefix.size()) == prefix;
}

// What a file that is no zip archive probably is, and what to do about it.
std::pair<std::string, std::string> Recognise(std::span<const uint8_t> bytes) {
  using namespace std::string_view_literals;
  const char* resave = "load it with PyTorch 1.6 or later and save it again with torch.save";
  if (bytes.empty()) return {"the file is empty", "write or download it again"};
  // LONG1 of torch's magic number 0x1950a86a20f9469cfc6c after PROTO 2.
  if (StartsWith(bytes, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv)) {
    return {"this is a legacy torch file from before the zip format", resave};
  }
  if (StartsWith(bytes, "ustar", 257)) return {"this is a tar archive (legacy torch file)", resave};
  if (bytes[0] == 0x80) return {"this is a bare pickle, not a torch.save archive", resave};
  if (StartsWith(bytes, "version https://git-lfs")) {
    return {"this is a Git LFS pointer, not the file itself", "fetch it with: git lfs pull"};
  }
  if (StartsWith(bytes, "\x89HDF\r\n\x1a\n"sv)) return {"this is an HDF5 file", ""};
  if (StartsWith(bytes, "GGUF")) return {"this is a GGUF file", ""};
  if (StartsWith(bytes, "<")) return {"this looks like a web page", "download the raw file"};
  if (StartsWith(bytes, "PK")) {
    return {"no end of the archive found: the file is truncated", "copy or download it again"};
  }
  return {fmt::format("expected a zip archive (magic \"PK\"), found first byte 0x{:02x}", bytes[0]),
          ""};
}

}  // namespace

void ZipReader::Fail(ErrorCode code, std::string_view member, uint64_t offset,
                     std::string_view what) const {
  const std::string where = member.empty() ? "" : fmt::format(" member {}", Printable(member));
  throw Error(code, fmt::format("{}:{} at byte {}: {}", path().string(), where, offset, what));
}

ZipReader::ZipReader(const std::filesystem::path& path)
    : file_(std::make_shared<const MappedFile>(path)) {
  if (!StartsWith(bytes(), "PK")) {
    const auto [what, hint] = Recognise(bytes());
    throw Error(ErrorCode::kFormat, fmt::format("{}: {}", path.string(), what), hint);
  }
  ReadDirectory(FindDirectory());
  CheckDisjoint();
}

const ZipMember* ZipReader::Find(std::string_view name) const {
  for (const ZipMember& member : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

// The end record is the last one whose comment reaches exactly to the end of the file.
ZipReader::Directory ZipReader::FindDirectory() const {
  const uint64_t size = bytes().size();
  const uint64_t longest = kEndRecordBytes + kSaturated16;
  const uint64_t first = size > longest ? size - longest : 0;
  for (uint64_t at = size < kEndRecordBytes ? first : size - kEndRecordBytes + 1; at-- > first;) {
    if (Load<uint32_t>(bytes(), at) != kEndRecord) continue;
    if (at + kEndRecordBytes + Load<uint16_t>(bytes(), at + 20) != size) continue;
    if (Load<uint16_t>(bytes(), at + 4) != Load<uint16_t>(bytes(), at + 6)) {
      Fail(ErrorCode::kUnsupported, "", at, "the archive is split over several files");
    }
    Directory directory{Load<uint32_t>(bytes(), at + 16), Load<uint32_t>(bytes(), at + 12),
                        Load<uint16_t>(bytes(), at + 10)};
    ReadZip64(at, directory);
    if (!Inside(directory.offset, directory.bytes, at)) {
      Fail(ErrorCode::kFormat, "", at,
           fmt::format("central directory of {} bytes at {} reaches beyond its end record",
                       directory.bytes, directory.offset));
    }
    return directory;
  }
  const auto [what, hint] = Recognise(bytes());
  throw Error(ErrorCode::kFormat, fmt::format("{}: {}", path().string(), what), hint);
}

// Replaces the 32-bit values by those of the zip64 record when there is one. The two must agree
// wherever the short ones are not saturated, or two readers could see two archives.
void ZipReader::ReadZip64(uint64_t end_offset, Directory& directory) const {
  if (end_offset < kZip64LocatorBytes ||
      Load<uint32_t>(bytes(), end_offset - kZip64LocatorBytes) != kZip64Locator) {
    return;
  }
  const uint64_t at = Load<uint64_t>(bytes(), end_offset - kZip64LocatorBytes + 8);
  if (!Inside(at, kZip64EndRecordBytes, end_offset - kZip64LocatorBytes) ||
      Load<uint32_t>(bytes(), at) != kZip64EndRecord) {
    Fail(ErrorCode::kFormat, "", end_offset - kZip64LocatorBytes,
         fmt::format("the zip64 locator points to byte {}, where no zip64 record is", at));
  }
  const Directory wide{Load<uint64_t>(bytes(), at + 48), Load<uint64_t>(bytes(), at + 40),
                       Load<uint64_t>(bytes(), at + 32)};
  const bool agrees = (directory.offset == kSaturated32 || directory.offset == wide.offset) &&
                      (directory.bytes == kSaturated32 || directory.bytes == wide.bytes) &&
                      (directory.entries == kSaturated16 || directory.entries == wide.entries);
  if (!agrees) {
    Fail(ErrorCode::kFormat, "", at, "the zip64 record contradicts the end record");
  }
  directory = wide;
}

void ZipReader::ReadDirectory(const Directory& directory) {
  const uint64_t end = directory.offset + directory.bytes;
  if (directory.entries > directory.bytes / kDirectoryEntryBytes) {
    Fail(ErrorCode::kFormat, "", directory.offset,
         fmt::format("{} entries do not fit into a directory of {} bytes", directory.entries,
                     directory.bytes));
  }
  std::set<std::string, std::less<>> names;
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (!Inside(at, kDirectoryEntryBytes, end) || Load<uint32_t>(bytes(), at) != kDirectoryEntry) {
      Fail(ErrorCode::kFormat, "", at,
           fmt::format("expected directory entry {} of {}", i + 1, directory.entries));
    }
    const uint64_t name_bytes = Load<uint16_t>(bytes(), at + 28);
    const uint64_t extra_bytes = Load<uint16_t>(bytes(), at + 30);
    const uint64_t comment_bytes = Load<uint16_t>(bytes(), at + 32);
    if (!Inside(at + kDirectoryEntryBytes, name_bytes + extra_bytes + comment_bytes, end)) {
      Fail(ErrorCode::kFormat, "", at, "a directory entry reaches beyond the directory");
    }
    ZipMember member;
    member.name = TextAt(bytes(), at + kDirectoryEntryBytes, name_bytes);
    const uint16_t flags = Load<uint16_t>(bytes(), at + 8);
    member.method = Load<uint16_t>(bytes(), at + 10);
    member.crc = Load<uint32_t>(bytes(), at + 16);
    member.compressed_bytes = Load<uint32_t>(bytes(), at + 20);
    member.bytes = Load<uint32_t>(bytes(), at + 24);
    member.header_offset = Load<uint32_t>(bytes(), at + 42);
    ReadZip64Extra(bytes().subspan(at + kDirectoryEntryBytes + name_bytes, extra_bytes), at,
                   member);
    if (!names.insert(member.name).second) {
      Fail(ErrorCode::kFormat, member.name, at, "two members have this name");
    }
    CheckLocalHeader(member, flags, directory.offset);
    members_.push_back(std::move(member));
    at += kDirectoryEntryBytes + name_bytes + extra_bytes + comment_bytes;
  }
}

// Extra field 1 holds the 64-bit values of exactly those fields that are saturated, in this order.
void ZipReader::ReadZip64Extra(std::span<const uint8_t> extra, uint64_t offset,
                               ZipMember& member) const {
  uint64_t at = 0;
  while (Inside(at, 4, extra.size())) {
    const uint16_t id = Load<uint16_t>(extra, at);
    const uint64_t length = Load<uint16_t>(extra, at + 2);
    at += 4;
    if (!Inside(at, length, extra.size())) break;
    if (id == 1) {
      const auto fields = extra.subspan(at, length);
      uint64_t used = 0;
      for (uint64_t* value : {&member.bytes, &member.compressed_bytes, &member.header_offset}) {
        if (*value != kSaturated32) continue;
        if (!Inside(used, 8, fields.size())) {
          Fail(ErrorCode::kFormat, member.name, offset, "the zip64 field is too short");
        }
        *value = Load<uint64_t>(fields, used);
        used += 8;
      }
      return;
    }
    at += length;
  }
}

// `limit`: where the directory begins; all content must lie before it.
void ZipReader::CheckLocalHeader(ZipMember& member, uint16_t flags, uint64_t limit) const {
  const uint64_t at = member.header_offset;
  if ((flags & kEncryptedFlag) != 0) {
    Fail(ErrorCode::kUnsupported, member.name, at, "the member is encrypted");
  }
  if (member.method != kStored && member.method != kDeflated) {
    Fail(ErrorCode::kUnsupported, member.name, at,
         fmt::format("compression method {}; only 0 (stored) and 8 (deflated) are read",
                     member.method));
  }
  if (!Inside(at, kLocalHeaderBytes, limit) || Load<uint32_t>(bytes(), at) != kLocalHeader) {
    Fail(ErrorCode::kFormat, member.name, at, "no local header where the directory points");
  }
  const uint64_t name_bytes = Load<uint16_t>(bytes(), at + 26);
  const uint64_t extra_bytes = Load<uint16_t>(bytes(), at + 28);
  member.data_offset = at + kLocalHeaderBytes + name_bytes + extra_bytes;
  if (!Inside(member.data_offset, member.compressed_bytes, limit)) {
    Fail(ErrorCode::kFormat, member.name, member.data_offset,
         fmt::format("content of {} bytes reaches beyond byte {}, where the directory begins",
                     member.compressed_bytes, limit));
  }
  if (TextAt(bytes(), at + kLocalHeaderBytes, name_bytes) != member.name ||
      Load<uint16_t>(bytes(), at + 8) != member.method) {
    Fail(ErrorCode::kFormat, member.name, at, "the local header contradicts the directory");
  }
  if ((Load<uint16_t>(bytes(), at + 6) & kDataDescriptorFlag) == 0) {
    const uint32_t compressed = Load<uint32_t>(bytes(), at + 18);
    const uint32_t size = Load<uint32_t>(bytes(), at + 22);
    if (Load<uint32_t>(bytes(), at + 14) != member.crc ||
        (compressed != kSaturated32 && compressed != member.compressed_bytes) ||
        (size != kSaturated32 && size != member.bytes)) {
      Fail(ErrorCode::kFormat, member.name, at, "the local header contradicts the directory");
    }
  }
  if (member.method == kStored && member.bytes != member.compressed_bytes) {
    Fail(ErrorCode::kFormat, member.name, at,
         fmt::format("a stored member claims {} bytes out of {}", member.bytes,
                     member.compressed_bytes));
  }
  if (member.method == kDeflated && member.bytes / kMaxDeflateRatio > member.compressed_bytes) {
    Fail(ErrorCode::kFormat, member.name, at,
         fmt::format("{} compressed bytes cannot hold the claimed {}", member.compressed_bytes,
                     member.bytes));
  }
}

void ZipReader::CheckDisjoint() const {
  std::vector<const ZipMember*> order;
  for (const ZipMember& member : members_) order.push_back(&member);
  std::sort(order.begin(), order.end(), [](const ZipMember* a, const ZipMember* b) {
    return a->header_offset < b->header_offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->data_offset + order[i - 1]->compressed_bytes > order[i]->header_offset) {
      Fail(ErrorCode::kFormat, order[i]->name, order[i]->header_offset,
           fmt::format("overlaps with member {}", Printable(order[i - 1]->name)));
    }
  }
}

OwnedBytes ZipReader::Inflate(const ZipMember& member) {
  if (member.bytes > kMaxInflatedBytes - inflated_bytes_) {
    Fail(ErrorCode::kUnsupported, member.name, member.data_offset,
         fmt::format("inflated content of more than {} MiB", kMaxInflatedBytes >> 20));
  }
  inflated_bytes_ += member.bytes;
  auto buffer = std::make_shared_for_overwrite<uint8_t[]>(std::max<uint64_t>(member.bytes, 1));
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {
    throw Error(ErrorCode::kMemory, fmt::format("{}: no memory to inflate", path().string()));
  }
  const std::unique_ptr<z_stream, void (*)(z_stream*)> guard(&stream,
                                                             [](z_stream* s) { ::inflateEnd(s); });
  uint64_t remaining_in = member.compressed_bytes;
  uint64_t remaining_out = member.bytes;
  // zlib does not write through next_in, it only lacks the const.
  stream.next_in = const_cast<uint8_t*>(bytes().data() + member.data_offset);
  stream.next_out = buffer.get();
  int status = Z_OK;
  while (status == Z_OK) {
    const auto in = static_cast<uInt>(std::min<uint64_t>(remaining_in, 1U << 30));
    const auto out = static_cast<uInt>(std::min<uint64_t>(remaining_out, 1U << 30));
    stream.avail_in = in;
    stream.avail_out = out;
    status = ::inflate(&stream, Z_NO_FLUSH);
    remaining_in -= in - stream.avail_in;
    remaining_out -= out - stream.avail_out;
    if (status == Z_OK && in == stream.avail_in && out == stream.avail_out) status = Z_BUF_ERROR;
  }
  if (status != Z_STREAM_END || remaining_in != 0 || remaining_out != 0) {
    Fail(ErrorCode::kFormat, member.name, member.data_offset,
         fmt::format("content does not inflate to the claimed {} bytes", member.bytes));
  }
  return {buffer, {buffer.get(), member.bytes}};
}

OwnedBytes ZipReader::Read(const ZipMember& member, bool check_crc, size_t alignment) {
  OwnedBytes content;
  if (member.method == kDeflated) {
    content = Inflate(member);
  } else {
    content = {file_, bytes().subspan(member.data_offset, member.bytes)};
    if (reinterpret_cast<uintptr_t>(content.bytes.data()) % alignment != 0) {
      auto copy = std::make_shared_for_overwrite<uint8_t[]>(std::max<uint64_t>(member.bytes, 1));
      std::copy(content.bytes.begin(), content.bytes.end(), copy.get());
      content = {copy, {copy.get(), member.bytes}};
    }
  }
  if (check_crc) {
    const auto found = static_cast<uint32_t>(
        ::crc32_z(::crc32_z(0, nullptr, 0), content.bytes.data(), content.bytes.size()));
    if (found != member.crc) {
      Fail(ErrorCode::kFormat, member.name, member.data_offset,
           fmt::format("CRC-32 is {:08x}, expected {:08x}: the content is damaged", found,
                       member.crc));
    }
  }
  return content;
}

}  // namespace oscar
