#include "oscar/calibrate/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oscar/core/error.h"

namespace oscar {
namespace {

using testing::HasSubstr;

template <typename Body>
std::string UsageMessage(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(ClipOptions, ReadsPoliciesAndPairs) {
  EXPECT_EQ(ClipOptions::FromText("search").policy, ClipPolicy::kSearch);
  EXPECT_EQ(ClipOptions::FromText("off").policy, ClipPolicy::kOff);
  const ClipOptions fixed = ClipOptions::FromText("0.96,0.92");
  EXPECT_EQ(fixed.policy, ClipPolicy::kFixed);
  EXPECT_EQ(fixed.key, 0.96);
  EXPECT_EQ(fixed.value, 0.92);
  EXPECT_EQ(ClipOptions::FromText("1,1").key, 1);
}

TEST(ClipOptions, RefusesWhatIsNoRatio) {
  for (const char* text : {"", "0.96", "0.96,", ",0.92", "0,0.9", "0.9,1.1", "-0.9,0.9", "nan,0.9",
                           "0.9,0.9,0.9", "0.9, 0.9", "Search", "0.9x,0.9"}) {
    EXPECT_THAT(UsageMessage([&] { ClipOptions::FromText(text); }), HasSubstr("--clip")) << text;
  }
}

TEST(TargetOption, KnowsTheTargetsOfItsSide) {
  EXPECT_EQ(TargetOption("qqt", true), Target::kQqt);
  EXPECT_EQ(TargetOption("ktk", true), Target::kKtk);
  EXPECT_EQ(TargetOption("sst", false), Target::kSst);
  EXPECT_EQ(TargetOption("svsv", false), Target::kSvsv);
  EXPECT_EQ(TargetOption("vtv", false), Target::kVtv);
  EXPECT_EQ(TargetOption("none", true), std::nullopt);
  EXPECT_THAT(UsageMessage([] { TargetOption("sst", true); }), HasSubstr("qqt, ktk, none"));
  EXPECT_THAT(UsageMessage([] { TargetOption("qqt", false); }), HasSubstr("sst, svsv, vtv, none"));
}

TEST(Objective, NamesTargetAndComposition) {
  EXPECT_EQ(Objective(Target::kSst, Composition::kRHPbr), "sst_r_h_pbr");
  EXPECT_EQ(Objective(Target::kKtk, Composition::kPlain), "ktk_plain");
  EXPECT_EQ(Objective(Target::kQqt, Composition::kHadamard), "hadamard");
  EXPECT_EQ(Objective(std::nullopt, Composition::kRHPbr), "hadamard");
}

TEST(CalibrateOptions, RefusesImpossibleCombinations) {
  CalibrateOptions good;
  good.model_name = "m";
  good.out = "/nonexistent/entry";
  EXPECT_NO_THROW(good.Check());
  const auto message = [&](auto change) {
    CalibrateOptions bad = good;
    change(bad);
    return UsageMessage([&] { bad.Check(); });
  };
  EXPECT_THAT(message([](auto& o) { o.key_target = Target::kSst; }), HasSubstr("keys"));
  EXPECT_THAT(message([](auto& o) { o.value_target = Target::kQqt; }), HasSubstr("values"));
  EXPECT_THAT(message([](auto& o) { o.model_name.clear(); }), HasSubstr("--model-name"));
  EXPECT_THAT(message([](auto& o) { o.out.clear(); }), HasSubstr("--out"));
  EXPECT_THAT(message([](auto& o) { o.windows.sink = -1; }), HasSubstr("sink"));
  EXPECT_THAT(message([](auto& o) { o.clip.sequences = 0; }), HasSubstr("sequence"));
  EXPECT_THAT(message([](auto& o) { o.clip.grid.step = 0; }), HasSubstr("step"));
  EXPECT_THAT(message([](auto& o) { o.fit.gates.min_tokens_per_dim = -1; }),
              HasSubstr("--min-tokens-per-dim"));
}

}  // namespace
}  // namespace oscar
