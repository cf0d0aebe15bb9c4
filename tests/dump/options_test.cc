#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dump/dump_folder.h"
#include "oscar/dump/layer_list.h"

namespace oscar {
namespace {

using test::Thrown;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LayerList, ParsesNumbersAndRanges) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(SelectLayers("", all), all);
  EXPECT_THAT(SelectLayers("0-3,7", all), ElementsAre(0, 1, 2, 3, 7));
  EXPECT_THAT(SelectLayers("7,2,2-3", all), ElementsAre(2, 3, 7));
  EXPECT_THAT(SelectLayers("0", all), ElementsAre(0));
  EXPECT_THAT(SelectLayers("3,7", {3, 7}), ElementsAre(3, 7));
  for (const char* bad : {",", "1,", "a", "3-1", "-1", "1-", "1-2-3", " 1", "01", "+1", "1 2",
                          "99999999999999999999"}) {
    const Error error = Thrown([&] { SelectLayers(bad, all); });
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << bad;
    EXPECT_THAT(error.what(), HasSubstr(bad));
  }
  EXPECT_THAT(Thrown([&] { SelectLayers("6-8", all); }).what(), HasSubstr("there is no layer 8"));
  EXPECT_THAT(Thrown([&] {
                SelectLayers("3-7", {3, 7});
              }).what(),
              HasSubstr("there is no layer 4"));
}

TEST(Options, ContradictionsAreUsageErrors) {
  struct Case {
    void (*change)(DumpOptions&);
    const char* part;
  };
  // Each starts from a valid set of options; none gets as far as opening a file.
  const Case cases[] = {
      {[](DumpOptions& o) { o.model = ""; }, "either --model or --import"},
      {[](DumpOptions& o) { o.import_dir = "d"; }, "--model or --import, not both"},
      {[](DumpOptions& o) { o.text = {}; }, "either --text or --token-ids"},
      {[](DumpOptions& o) { o.token_ids = "t"; }, "--text or --token-ids, not both"},
      {[](DumpOptions& o) { o.out = ""; }, "--out is missing"},
      {[](DumpOptions& o) { o.window = 0; }, "--window"},
      {[](DumpOptions& o) { o.moments = "qqt"; }, "unknown moment 'qqt'"},
      {[](DumpOptions& o) { o.q_heads = 4; }, "belong to --import"},
      {[](DumpOptions& o) { o.softmax_scale = 1; }, "belong to --import"},
      {[](DumpOptions& o) { o.model = "", o.import_dir = "d"; }, "belong to --model"},
      {[](DumpOptions& o) { o.model = "", o.import_dir = "d", o.text = {}; },
       "--import needs --q-heads and --kv-heads"},
      {[](DumpOptions& o) {
         o.model = "", o.import_dir = "d", o.text = {}, o.q_heads = 5, o.kv_heads = 2;
       },
       "5 is no multiple"},
      {[](DumpOptions& o) {
         o.model = "", o.import_dir = "d", o.text = {}, o.q_heads = 4, o.kv_heads = 2;
         o.device = "cuda";
       },
       "runs on the CPU"},
  };
  NullProgress progress;
  CancelToken cancel;
  for (const Case& c : cases) {
    DumpOptions options;
    options.model = "m";
    options.text = {"t.txt"};
    options.out = "o.h5";
    c.change(options);
    const Error error = Thrown([&] { RunDump(options, {&progress, &cancel, 1}); });
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(c.part));
  }
}

}  // namespace
}  // namespace oscar
