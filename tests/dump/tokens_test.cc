#include "oscar/dump/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dump/dump_folder.h"
#include "oscar/core/files.h"
#include "oscar/h5/file.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FreshFolder;
using test::Thrown;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenIdsH5, ReadsOneTwoDimensionsAndGroups) {
  const fs::path file = FreshFolder("token_ids") / "ids.h5";
  const auto write = [&](const std::function<void(H5File&)>& fill) {
    H5File out = H5File::Create(file);
    fill(out);
    out.Close();
  };
  write([](H5File& f) { f.Write<int32_t>("token_ids", std::vector<int32_t>{5, 6, 7}, {3}); });
  EXPECT_THAT(ReadTokenIdsH5(file), ElementsAre(ElementsAre(5, 6, 7)));
  write([](H5File& f) {
    f.Write<int64_t>("input_ids", std::vector<int64_t>{5, 6, 7, 8, 9, 10}, {2, 3});
  });
  EXPECT_THAT(ReadTokenIdsH5(file), ElementsAre(ElementsAre(5, 6, 7), ElementsAre(8, 9, 10)));
  write([](H5File& f) {
    f.CreateGroup("seq1").Write<int32_t>("input_ids", std::vector<int32_t>{3}, {1});
    f.CreateGroup("seq0").Write<int32_t>("input_ids", std::vector<int32_t>{1, 2}, {2});
    f.CreateGroup("other").Write<int32_t>("x", std::vector<int32_t>{1, 2}, {2});
  });
  EXPECT_THAT(ReadTokenIdsH5(file), ElementsAre(ElementsAre(1, 2), ElementsAre(3)));
}

TEST(TokenIdsH5, RefusesWhatAreNoIds) {
  const fs::path file = FreshFolder("token_ids_bad") / "ids.h5";
  const auto message = [&](const std::function<void(H5File&)>& fill) {
    H5File out = H5File::Create(file);
    fill(out);
    out.Close();
    const Error error = Thrown([&] { ReadTokenIdsH5(file); });
    EXPECT_EQ(error.code(), ErrorCode::kFormat);
    return std::string(error.what());
  };
  EXPECT_THAT(message([](H5File&) {}), HasSubstr("no dataset token_ids or input_ids"));
  EXPECT_THAT(message([](H5File& f) { f.Write<double>("token_ids", std::vector{1.0}, {1}); }),
              HasSubstr("holds f64"));
  EXPECT_THAT(message([](H5File& f) {
                f.Write<int32_t>("token_ids", std::vector<int32_t>{1, -2}, {2});
              }),
              HasSubstr("element 1 is -2"));
  EXPECT_THAT(message([](H5File& f) {
                f.Write<int64_t>("token_ids", std::vector<int64_t>{int64_t{1} << 31}, {1});
              }),
              HasSubstr("no token id"));
  EXPECT_THAT(message([](H5File& f) {
                f.Write<int32_t>("token_ids", std::vector<int32_t>{1}, {1, 1, 1});
              }),
              HasSubstr("one or two dimensions"));
}

TEST(DescribeFile, NamesWithoutFolderAndHashesTheContent) {
  const fs::path file = FreshFolder("describe") / "a.txt";
  WriteTextFile(file, "abc");
  const Value value = DescribeFile(file);
  EXPECT_EQ(value.At("name").AsString(), "a.txt");
  EXPECT_EQ(value.At("bytes").AsInt(), 3);
  EXPECT_EQ(value.At("sha256").AsString(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace oscar
