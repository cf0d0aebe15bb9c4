#include "oscar/calibrate/recommendation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace oscar {
namespace {

using testing::HasSubstr;

// Two layers with the given predicted ratios and, where positive, measured ones, of both sides.
Recommendation Decide(double predicted, double measured, Grouping grouping = Grouping::kLayer) {
  std::map<int, LayerFits> fits;
  Clips clips;
  for (const int layer : {0, 1}) {
    for (SideFits* side : {&fits[layer].key, &fits[layer].value}) {
      side->target = Target::kQqt;
      side->grouping = grouping;
      // Geometric mean over the layers: predicted / 2 and predicted * 2.
      side->predicted.shared = predicted * (layer == 0 ? 0.5 : 2);
      side->predicted.per_head = 1;
    }
    if (measured <= 0) continue;
    const MeasuredLoss loss =
        grouping == Grouping::kLayer ? MeasuredLoss{measured, 1} : MeasuredLoss{1, measured};
    clips.key.measured[layer] = loss;
    clips.value.measured[layer] = {1, 1};
  }
  return Recommend(fits, clips);
}

TEST(Recommend, FollowsThePredictionWhereNothingWasMeasured) {
  EXPECT_EQ(Decide(3.9, 0).grouping, Grouping::kLayer);
  const Recommendation head = Decide(4.1, 0);
  EXPECT_EQ(head.grouping, Grouping::kHead);
  EXPECT_FALSE(head.disputed);
  EXPECT_NEAR(*head.key.predicted, 4.1, 1e-12);
  EXPECT_FALSE(head.key.measured.has_value());
  EXPECT_THAT(head.reason, HasSubstr("keys 4.10 predicted, unknown measured"));
}

TEST(Recommend, AMeasuredGainIsEnoughAndADisagreementIsSaid) {
  for (const Grouping grouping : {Grouping::kLayer, Grouping::kHead}) {
    const Recommendation gain = Decide(1.5, 1.3, grouping);
    EXPECT_EQ(gain.grouping, Grouping::kHead);
    EXPECT_NEAR(*gain.key.measured, 1.3, 1e-12);
    EXPECT_TRUE(gain.disputed);
    EXPECT_THAT(gain.reason, HasSubstr("disagree"));
    EXPECT_EQ(Decide(1.5, 1.2, grouping).grouping, Grouping::kLayer);
    EXPECT_FALSE(Decide(1.5, 1.2, grouping).disputed);
    EXPECT_EQ(Decide(9, 1.0, grouping).grouping, Grouping::kHead);
    EXPECT_TRUE(Decide(9, 1.0, grouping).disputed);
    EXPECT_FALSE(Decide(9, 2.0, grouping).disputed);
  }
}

// Where moments do not tell, rows decide, and there is nothing for them to speak against.
TEST(Recommend, LeavesItToRowsWhereThePredictionIsUnknown) {
  for (const double measured : {0.0, 1.0, 1.3}) {
    std::map<int, LayerFits> fits;
    Clips clips;
    for (SideFits* side : {&fits[0].key, &fits[0].value}) {
      side->target = Target::kSst;
      side->predicted.shared = 1;
      side->predicted.per_head = 1e-13;
      side->predicted.bounded = false;
    }
    if (measured > 0) clips.key.measured[0] = clips.value.measured[0] = {measured, 1};
    const Recommendation result = Recommend(fits, clips);
    EXPECT_EQ(result.grouping, measured > 1.25 ? Grouping::kHead : Grouping::kLayer);
    EXPECT_FALSE(result.disputed);
    EXPECT_EQ(result.value.predicted, std::nullopt);
    EXPECT_THAT(result.reason, HasSubstr("values unknown predicted"));
  }
}

TEST(Recommend, HasNothingToSayAboutDataFreeRotations) {
  std::map<int, LayerFits> fits;
  fits[0];
  const Recommendation none = Recommend(fits, {});
  EXPECT_EQ(none.grouping, Grouping::kLayer);
  EXPECT_THAT(none.reason, HasSubstr("data-free"));
}

}  // namespace
}  // namespace oscar
