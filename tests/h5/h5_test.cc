#include "oscar/h5/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/core/files.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class H5Test : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("oscar_h5_") + info->name() + "_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path File(const std::string& name = "a.h5") const { return folder_ / name; }

  fs::path folder_;
};

// What another HDF5 program prints for one object: the trusted reader of these tests.
std::string Dump(const fs::path& file, const std::string& arguments) {
  const std::string command = "h5dump " + arguments + " " + file.string() + " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe.get())) text.append(buffer, n);
  return text;
}

bool HaveH5Dump() { return std::system("h5dump --version >/dev/null 2>&1") == 0; }

template <typename Action>
Error Thrown(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kUsage, "");
}

template <typename T>
void RoundTrip(const fs::path& file, const std::vector<T>& data, H5Type type) {
  {
    H5File out = H5File::Create(file);
    H5Group group = out.CreateGroup("g");
    const int64_t n = static_cast<int64_t>(data.size());
    group.Write<T>("plain", data, {n});
    group.Write<T>("chunked", data, {n, 1}, 2);
    out.Close();
  }
  const H5File in = H5File::Open(file);
  EXPECT_EQ(in.Dataset("g/plain").type(), type);
  EXPECT_FALSE(in.Dataset("g/plain").chunked());
  EXPECT_TRUE(in.Dataset("g/chunked").chunked());
  const std::vector<T> plain = in.Read<T>("g/plain");
  const std::vector<T> chunked = in.Read<T>("g/chunked");
  ASSERT_EQ(plain.size(), data.size());
  ASSERT_EQ(chunked.size(), data.size());
  EXPECT_EQ(std::memcmp(plain.data(), data.data(), data.size() * sizeof(T)), 0);
  EXPECT_EQ(std::memcmp(chunked.data(), data.data(), data.size() * sizeof(T)), 0);
}

TEST_F(H5Test, EveryTypeComesBackBitForBit) {
  using D = std::numeric_limits<double>;
  RoundTrip<double>(File(), {0.0, -0.0, D::max(), D::denorm_min(), D::infinity(), D::quiet_NaN()},
                    H5Type::kF64);
  using F = std::numeric_limits<float>;
  RoundTrip<float>(File(), {0.0F, -0.0F, F::max(), F::denorm_min(), -F::infinity()}, H5Type::kF32);
  RoundTrip<int64_t>(File(), {INT64_MIN, -1, 0, INT64_MAX}, H5Type::kI64);
  RoundTrip<int32_t>(File(), {INT32_MIN, -1, 0, INT32_MAX, 7}, H5Type::kI32);
  RoundTrip<uint64_t>(File(), {0, 1, UINT64_MAX}, H5Type::kU64);
  RoundTrip<uint16_t>(File(), {0, 1, UINT16_MAX}, H5Type::kU16);
  RoundTrip<uint8_t>(File(), {0, 1, 255}, H5Type::kU8);
  std::vector<BFloat16> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  RoundTrip<BFloat16>(File(), all, H5Type::kBF16);
}

TEST_F(H5Test, BFloat16IsAFloatForEveryClient) {
  std::vector<BFloat16> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  {
    H5File out = H5File::Create(File());
    out.Write<BFloat16>("x", all, {65536});
    out.Write<BFloat16>("few", std::vector{ToBFloat16(1.5F), ToBFloat16(-256.0F)}, {2});
    out.Close();
  }
  // The library's own conversion, a code path that knows nothing of our ToFloat.
  const std::vector<float> floats = H5File::Open(File()).Read<float>("x");
  for (size_t i = 0; i < all.size(); ++i) {
    const float expected = ToFloat(all[i]);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(floats[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
  if (!HaveH5Dump()) GTEST_SKIP() << "h5dump is not installed";
  EXPECT_THAT(Dump(File(), "-d few"), HasSubstr("(0): 1.5, -256"));
}

TEST_F(H5Test, AnotherProgramSeesOurShapesOrderAndAttributes) {
  if (!HaveH5Dump()) GTEST_SKIP() << "h5dump is not installed";
  {
    H5File out = H5File::Create(File());
    std::vector<double> data(6);
    std::iota(data.begin(), data.end(), 0.0);
    out.CreateGroup("g").Write<double>("x", data, {2, 3});
    out.SetAttribute("text", "hello");
    out.SetAttribute("number", 7);
    out.Close();
  }
  const std::string text = Dump(File(), "-d /g/x");
  EXPECT_THAT(text, HasSubstr("SIMPLE { ( 2, 3 ) / ( 2, 3 ) }"));
  EXPECT_THAT(text, HasSubstr("(1,0): 3, 4, 5"));
  EXPECT_THAT(Dump(File(), "-a text"), HasSubstr("\"hello\""));
  EXPECT_THAT(Dump(File(), "-a number"), HasSubstr("(0): 7"));
}

TEST_F(H5Test, RowsAreSlabsOfTheLeadingAxis) {
  std::vector<int32_t> data(7 * 6);
  std::iota(data.begin(), data.end(), 0);
  {
    H5File out = H5File::Create(File());
    H5Dataset rows = out.CreateDataset<int32_t>("x", {7, 2, 3}, 3);
    const std::span<const int32_t> all(data);
    rows.WriteRows<int32_t>(4, all.subspan(24));
    rows.WriteRows<int32_t>(0, all.first(24));
    out.Close();
  }
  const H5File in = H5File::Open(File());
  const H5Dataset rows = in.Dataset("x");
  EXPECT_EQ(rows.Read<int32_t>(), data);
  for (int64_t begin = 0; begin <= 7; ++begin) {
    for (int64_t count = 0; begin + count <= 7; ++count) {
      EXPECT_EQ(rows.ReadRows<int32_t>(begin, count),
                std::vector<int32_t>(data.begin() + begin * 6, data.begin() + (begin + count) * 6));
    }
  }
  for (const auto& [begin, count] : {std::pair{0L, 8L}, {7L, 1L}, {-1L, 1L}, {8L, 0L}, {1L, -1L}}) {
    EXPECT_EQ(Thrown([&] { rows.ReadRows<int32_t>(begin, count); }).code(), ErrorCode::kFormat);
  }
}

TEST_F(H5Test, EmptyScalarAndTextDatasets) {
  {
    H5File out = H5File::Create(File());
    out.Write<double>("empty", {}, {0, 5}, 4);
    out.Write<double>("scalar", std::vector{2.5}, {});
    out.WriteStrings("texts", {"", "a", "longer than the others"});
    out.WriteStrings("no_texts", {});
    out.SetAttribute("nothing", "");
    out.Close();
  }
  const H5File in = H5File::Open(File());
  EXPECT_EQ(in.Read<double>("empty", {0, 5}).size(), 0U);
  EXPECT_THAT(in.Read<double>("scalar", {}), ElementsAre(2.5));
  EXPECT_THAT(in.Dataset("texts").ReadStrings(), ElementsAre("", "a", "longer than the others"));
  EXPECT_TRUE(in.Dataset("no_texts").ReadStrings().empty());
  EXPECT_EQ(in.TextAttribute("nothing"), "");
  EXPECT_THAT(in.DatasetNames(), ElementsAre("empty", "no_texts", "scalar", "texts"));
  EXPECT_THAT(in.AttributeNames(), ElementsAre("nothing"));
}

TEST_F(H5Test, LongTextAttributesWork) {
  const std::string text(300000, 'x');  // beyond the 64 KiB of an object header
  {
    H5File out = H5File::Create(File());
    out.SetAttribute("manifest", text);
    out.SetAttribute("real", 0.1);
    out.Close();
  }
  const H5File in = H5File::Open(File());
  EXPECT_EQ(in.TextAttribute("manifest"), text);
  EXPECT_EQ(in.RealAttribute("real"), 0.1);
}

TEST_F(H5Test, EqualContentGivesEqualBytesAtAnyTime) {
  const auto write = [&](const std::string& name) {
    H5File out = H5File::Create(File(name));
    out.SetAttribute("manifest", "m");
    H5Group group = out.CreateGroup("layers");
    // Seven rows in chunks of four leave padding in the last chunk.
    group.Write<BFloat16>("rows", std::vector<BFloat16>(7 * 5, ToBFloat16(3.0F)), {7, 5}, 4);
    group.Write<double>("sums", std::vector<double>(9, 1.0), {3, 3});
    group.WriteStrings("names", {"x", "yy"});
    out.Close();
    return ReadTextFile(File(name));
  };
  const std::string first = write("first.h5");
  { const std::vector<uint8_t> litter(1 << 20, 0xab); }  // freed memory that is not zero
  ::sleep(2);  // object times have a resolution of one second
  EXPECT_TRUE(write("second.h5") == first);
}

TEST_F(H5Test, ErrorsNameFileObjectExpectationAndFinding) {
  {
    H5File out = H5File::Create(File());
    H5Group group = out.CreateGroup("g");
    group.Write<double>("x", std::vector<double>(4), {2, 2});
    group.Write<int64_t>("i", std::vector<int64_t>{-1}, {1});
    out.SetAttribute("n", 1);
    out.Close();
  }
  const H5File in = H5File::Open(File());
  const auto expect = [](const Error& error, ErrorCode code, std::vector<std::string> parts) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  };
  expect(Thrown([&] { in.Read<double>("g/x", {4}); }), ErrorCode::kFormat,
         {"a.h5:/g/x", "[4]", "[2, 2]"});
  expect(Thrown([&] { in.Read<double>("g/none"); }), ErrorCode::kFormat,
         {"a.h5:/g/none: no such dataset"});
  expect(Thrown([&] { in.Read<double>("none/x"); }), ErrorCode::kFormat, {"no such dataset"});
  expect(Thrown([&] { in.Dataset("g"); }), ErrorCode::kFormat, {"not a dataset"});
  expect(Thrown([&] { in.Group("g/x"); }), ErrorCode::kFormat, {"not a group"});
  expect(Thrown([&] { in.Read<int32_t>("g/x"); }), ErrorCode::kFormat, {"holds f64, expected i32"});
  expect(Thrown([&] { in.Read<int32_t>("g/i"); }), ErrorCode::kFormat, {"holds i64, expected i32"});
  expect(Thrown([&] { in.Read<uint64_t>("g/i"); }), ErrorCode::kFormat,
         {"holds i64, expected u64"});
  expect(Thrown([&] { in.Read<BFloat16>("g/x"); }), ErrorCode::kFormat,
         {"holds f64, expected bf16"});
  expect(Thrown([&] { in.Dataset("g/x").ReadStrings(); }), ErrorCode::kFormat, {"expected string"});
  expect(Thrown([&] { in.TextAttribute("n"); }), ErrorCode::kFormat, {"expected text, found i64"});
  expect(Thrown([&] { in.IntAttribute("m"); }), ErrorCode::kFormat, {"has no attribute m"});
  expect(Thrown([&] { H5File::Open(File("none.h5")); }), ErrorCode::kIo,
         {"none.h5", "no such file"});
  expect(Thrown([&] { H5File::Open(folder_); }), ErrorCode::kIo, {"is a folder"});
  expect(Thrown([&] { H5File::Create(File("no/such/folder.h5")); }), ErrorCode::kIo, {"folder.h5"});
  WriteTextFile(File("text.h5"), "not HDF5");
  expect(Thrown([&] { H5File::Open(File("text.h5")); }), ErrorCode::kFormat, {"not an HDF5 file"});
  EXPECT_EQ(in.Read<double>("g/i"), std::vector<double>{-1});
}

TEST_F(H5Test, TruncationAtAnyLengthIsAnErrorNeverWrongData) {
  std::vector<double> data(100);
  std::iota(data.begin(), data.end(), 0.0);
  {
    H5File out = H5File::Create(File());
    out.Write<double>("x", data, {100});
    out.Close();
  }
  const std::string whole = ReadTextFile(File());
  for (size_t size = 0; size < whole.size(); size += 31) {
    std::ofstream(File("cut.h5"), std::ios::binary)
        .write(whole.data(), static_cast<std::streamsize>(size));
    const Error error = Thrown([&] { H5File::Open(File("cut.h5")).Read<double>("x"); });
    EXPECT_EQ(error.code(), ErrorCode::kFormat) << size;
    EXPECT_THAT(error.what(), HasSubstr("cut.h5"));
  }
}

TEST_F(H5Test, ShapesWithoutDataAreRefusedBeforeAllocating) {
  {
    H5File out = H5File::Create(File());
    out.CreateDataset<double>("huge", {int64_t{1} << 50, 8}, 4);  // nothing written
    out.Close();
  }
  const H5File in = H5File::Open(File());
  EXPECT_EQ(Thrown([&] { in.Read<double>("huge"); }).code(), ErrorCode::kFormat);
  EXPECT_EQ(Thrown([&] { in.Dataset("huge").ReadRows<double>(0, 1); }).code(), ErrorCode::kFormat);
}

}  // namespace
}  // namespace oscar
