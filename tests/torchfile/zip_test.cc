// Archives made and broken by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "oscar/core/files.h"
#include "oscar/torchfile/zip_reader.h"
#include "oscar/torchfile/zip_writer.h"
#include "support/golden.h"
#include "torchfile/describe.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Part {
  std::string name, content;
  uint16_t method = 0;
  uint32_t claimed = 0;  // uncompressed size; content.size() when 0
  uint32_t crc = 0;      // computed when 0
  uint16_t flags = 0;
  int64_t header_shift = 0;  // added to the directory's pointer
};

std::string Field(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xff);
  return text;
}

uint32_t Crc(const std::string& text) {
  return static_cast<uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

std::string Deflate(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  std::string in = text;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

// An archive as an ordinary zip program lays it out.
std::string Archive(const std::vector<Part>& parts, const std::string& comment = "") {
  std::string file, directory;
  for (const Part& part : parts) {
    const uint32_t size =
        part.claimed != 0 ? part.claimed : static_cast<uint32_t>(part.content.size());
    const std::string common = Field(part.flags, 2) + Field(part.method, 2) + Field(0, 4) +
                               Field(part.crc != 0 ? part.crc : Crc(part.content), 4) +
                               Field(part.content.size(), 4) + Field(size, 4) +
                               Field(part.name.size(), 2) + Field(0, 2);
    directory += "PK\x01\x02" + Field(20, 2) + Field(20, 2) + common + Field(0, 2) + Field(0, 2) +
                 Field(0, 2) + Field(0, 4) +
                 Field(file.size() + static_cast<uint64_t>(part.header_shift), 4) + part.name;
    file += "PK\x03\x04" + Field(20, 2) + common + part.name + part.content;
  }
  return file + directory + "PK\x05\x06" + Field(0, 4) + Field(parts.size(), 2) +
         Field(parts.size(), 2) + Field(directory.size(), 4) + Field(file.size(), 4) +
         Field(comment.size(), 2) + comment;
}

class Zip : public testing::Test {
 protected:
  fs::path Save(const std::string& bytes) {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    const fs::path path = test::FreshFolder(std::string("zip_") + info->name()) / "a.zip";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string Content(const std::string& archive, const std::string& name) {
    ZipReader zip(Save(archive));
    const OwnedBytes bytes = zip.Read(*zip.Find(name), true, 1);
    return {bytes.bytes.begin(), bytes.bytes.end()};
  }
  // Opens the archive and reads all members.
  std::string Refusal(const std::string& archive) {
    const fs::path path = Save(archive);
    const Error error = test::ErrorOf([&] {
      ZipReader zip(path);
      for (const ZipMember& member : zip.members()) zip.Read(member, true, 1);
    });
    EXPECT_THAT(error.what(), testing::StartsWith(path.string()));
    return error.what();
  }
};

TEST_F(Zip, StoredDeflatedEmptyAndCommented) {
  const std::string text(70000, 'a');
  Part deflated{"d", Deflate(text), 8, static_cast<uint32_t>(text.size()), Crc(text)};
  const std::string archive =
      Archive({{"a", "hello"}, {"e", ""}, deflated}, "a comment PK\x05\x06");
  EXPECT_EQ(Content(archive, "a"), "hello");
  EXPECT_EQ(Content(archive, "e"), "");
  EXPECT_EQ(Content(archive, "d"), text);
}

TEST_F(Zip, WriterAlignsAndReaderReads) {
  const fs::path path = test::FreshFolder("zip_writer") / "w.zip";
  std::vector<std::string> contents;
  ZipWriter writer(path);
  for (size_t i = 0; i < 200; ++i) {
    contents.push_back(std::string(i * 7, static_cast<char>('a' + i % 26)));
    writer.Add(std::string(1 + i, 'n'), contents.back());
  }
  writer.Finish();
  ZipReader reader(path);
  ASSERT_EQ(reader.members().size(), contents.size());
  for (size_t i = 0; i < contents.size(); ++i) {
    const ZipMember& member = reader.members()[i];
    EXPECT_EQ(member.data_offset % 64, 0U);
    const OwnedBytes bytes = reader.Read(member, true, 1);
    EXPECT_EQ(std::string(bytes.bytes.begin(), bytes.bytes.end()), contents[i]);
  }
}

TEST_F(Zip, MisalignedStoredContentIsCopied) {
  const fs::path path = Save(Archive({{"odd", "0123456789abcdef"}}));  // content at byte 33
  ZipReader zip(path);
  const OwnedBytes bytes = zip.Read(zip.members()[0], true, 8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.bytes.data()) % 8, 0U);
  EXPECT_EQ(bytes.bytes[15], 'f');
}

TEST_F(Zip, RefusesDamage) {
  EXPECT_THAT(Refusal(Archive({{"a", "hello", 0, 0, 1}})), HasSubstr("CRC-32"));
  EXPECT_THAT(Refusal(Archive({{"a", "hello", 0, 9}})), HasSubstr("claims 9 bytes out of 5"));
  EXPECT_THAT(Refusal(Archive({{"a", "hello", 8, 5}})), HasSubstr("does not inflate"));
  const std::string text(1000, 'x');
  EXPECT_THAT(Refusal(Archive({{"a", Deflate(text), 8, 999, Crc(text)}})),
              HasSubstr("does not inflate to the claimed 999"));
  EXPECT_THAT(Refusal(Archive({{"a", Deflate(text), 8, 1001, Crc(text)}})),
              HasSubstr("does not inflate"));
  EXPECT_THAT(Refusal(Archive({{"a", Deflate(text) + "tail", 8, 1000, Crc(text)}})),
              HasSubstr("does not inflate"));
}

TEST_F(Zip, RefusesBombsEncryptionAndOddMethods) {
  EXPECT_THAT(Refusal(Archive({{"a", "xx", 8, 0xfffffffe, 1}})), HasSubstr("cannot hold"));
  EXPECT_THAT(Refusal(Archive({{"a", "hello", 0, 0, 0, 1}})), HasSubstr("encrypted"));
  EXPECT_THAT(Refusal(Archive({{"a", "hello", 12}})), HasSubstr("compression method 12"));
  // Within the possible ratio, but beyond what one archive may inflate to.
  const std::string big(3 << 20, 'y');
  EXPECT_THAT(Refusal(Archive({{"a", big, 8, 0xc0000000, 1}})), HasSubstr("more than 2048 MiB"));
}

TEST_F(Zip, RefusesOverlapDuplicatesAndLies) {
  Part second{"b", "world"};
  second.header_shift = -36;  // points at the first member again
  EXPECT_THAT(Refusal(Archive({{"a", "hello"}, second})), HasSubstr("contradicts the directory"));
  Part same_name{"a", "hello"};
  same_name.header_shift = -36;
  EXPECT_THAT(Refusal(Archive({{"a", "hello"}, same_name})), HasSubstr("two members"));
  // The first member's content swallows the second member.
  const std::string inner = Archive({{"b", "world"}});
  std::string archive = Archive({{"a", inner.substr(0, 36)}, {"b", "world"}});
  const std::string directory_b = archive.substr(archive.rfind("PK\x01\x02"), 47);
  std::string moved = directory_b;
  moved.replace(42, 4, Field(31, 4));
  archive.replace(archive.rfind("PK\x01\x02"), 47, moved);
  EXPECT_THAT(Refusal(archive), HasSubstr("overlaps with member a"));
  Part astray{"a", "hello"};
  astray.header_shift = 1;
  EXPECT_THAT(Refusal(Archive({astray})), HasSubstr("no local header"));
}

TEST_F(Zip, RefusesEveryTruncation) {
  const std::string archive = Archive({{"a", "hello"}, {"b", "world"}}, "note");
  for (size_t length = 0; length < archive.size(); ++length) {
    EXPECT_NO_THROW(Refusal(archive.substr(0, length))) << length;
  }
}

TEST_F(Zip, RefusesContradictingZip64Record) {
  const fs::path path = test::FreshFolder("zip64_lie") / "w.zip";
  ZipWriter writer(path);
  writer.Add("a", std::string_view("hello"));
  writer.Finish();
  std::string bytes = ReadTextFile(path);
  bytes[bytes.rfind("PK\x06\x06") + 32] ^= 2;  // number of entries
  EXPECT_THAT(Refusal(bytes), HasSubstr("contradicts the end record"));
}

}  // namespace
}  // namespace oscar
