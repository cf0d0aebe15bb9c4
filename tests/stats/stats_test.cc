#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/stats/moments.h"
#include "oscar/stats/sst.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LayerShape kShape{
    .q_heads = 6, .kv_heads = 2, .k_dim = 4, .v_dim = 3, .softmax_scale = 0.5, .rope = "full"};

// Rows of small integers: every product and sum below is exact in double, so results are compared
// for equality.
struct Rows {
  int64_t tokens, heads, dim;
  std::vector<double> data;
  double operator()(int64_t t, int64_t h, int64_t d) const {
    return data[static_cast<size_t>((t * heads + h) * dim + d)];
  }
};

Rows IntegerRows(int64_t tokens, int64_t heads, int64_t dim, uint64_t seed) {
  Random random(seed);
  Rows rows{tokens, heads, dim, {}};
  for (int64_t i = 0; i < tokens * heads * dim; ++i) {
    rows.data.push_back(static_cast<double>(random.Below(9)) - 4);
  }
  return rows;
}

MomentTensor SecondMoment(const Rows& x, const std::vector<double>& weights = {}) {
  MomentTensor sums{{x.heads, x.dim, x.dim}, {}};
  for (int64_t h = 0; h < x.heads; ++h) {
    for (int64_t i = 0; i < x.dim; ++i) {
      for (int64_t j = 0; j < x.dim; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < x.tokens; ++t) {
          const double w = weights.empty() ? 1 : weights[static_cast<size_t>(t * x.heads + h)];
          sum += w * x(t, h, i) * x(t, h, j);
        }
        sums.data.push_back(sum);
      }
    }
  }
  return sums;
}

struct Layer {
  Rows q, k, v, o;
  LayerMoments moments;
};

Layer MakeLayer(int64_t tokens, uint64_t seed) {
  Layer layer{IntegerRows(tokens, 6, 4, seed),
              IntegerRows(tokens, 2, 4, seed + 1),
              IntegerRows(tokens, 2, 3, seed + 2),
              IntegerRows(tokens, 6, 3, seed + 3),
              {}};
  LayerMoments& m = layer.moments;
  m.shape = kShape;
  m.count = static_cast<uint64_t>(tokens);
  m.sums[Moment::kQq] = SecondMoment(layer.q);
  m.sums[Moment::kKk] = SecondMoment(layer.k);
  m.sums[Moment::kVv] = SecondMoment(layer.v);
  m.sums[Moment::kOo] = SecondMoment(layer.o);
  // Any positive integers will do as score weights here.
  std::vector<double> weights;
  for (int64_t i = 0; i < tokens * 2; ++i) weights.push_back(static_cast<double>(i % 5 + 1));
  m.sums[Moment::kSst] = SecondMoment(layer.v, weights);
  m.sums[Moment::kSstWeight] = {{2}, {0, 0}};
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t h = 0; h < 2; ++h) {
      m.sums[Moment::kSstWeight].data[h] += weights[static_cast<size_t>(t) * 2 + h];
    }
  }
  m.sst_qq_hash = HashOf(m.sums[Moment::kQq]);
  return layer;
}

TEST(Moments, TableNamesAreUniqueAndRoundTrip) {
  std::set<std::string_view> names;
  for (const MomentInfo& info : MomentTable()) {
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_EQ(MomentFromName(info.name), info.id);
    EXPECT_FALSE(info.formula.empty());
  }
  EXPECT_EQ(names.size(), 9U);
  EXPECT_THAT(MomentShape(Moment::kQq, kShape), ElementsAre(6, 4, 4));
  EXPECT_THAT(MomentShape(Moment::kKk, kShape), ElementsAre(2, 4, 4));
  EXPECT_THAT(MomentShape(Moment::kVv, kShape), ElementsAre(2, 3, 3));
  EXPECT_THAT(MomentShape(Moment::kOo, kShape), ElementsAre(6, 3, 3));
  EXPECT_THAT(MomentShape(Moment::kSst, kShape), ElementsAre(2, 3, 3));
  EXPECT_THAT(MomentShape(Moment::kSstWeight, kShape), ElementsAre(2));
  EXPECT_THAT(MomentShape(Moment::kQSum, kShape), ElementsAre(6, 4));
  EXPECT_THAT(MomentShape(Moment::kKSum, kShape), ElementsAre(2, 4));
  EXPECT_THAT(MomentShape(Moment::kVSum, kShape), ElementsAre(2, 3));
}

TEST(Moments, ListsAreParsedInTableOrderWithWhatTheyImply) {
  EXPECT_EQ(ParseMomentList("all").size(), MomentTable().size());
  EXPECT_THAT(ParseMomentList("v_sum,qq"), ElementsAre(Moment::kQq, Moment::kVSum));
  EXPECT_THAT(ParseMomentList("sst"), ElementsAre(Moment::kQq, Moment::kSst, Moment::kSstWeight));
  EXPECT_THAT(ParseMomentList("sst_weight,qq,qq"),
              ElementsAre(Moment::kQq, Moment::kSst, Moment::kSstWeight));
  for (const char* bad : {"", "qq,", ",qq", "qqt", "QQ", "qq kk", "all,qq"}) {
    try {
      ParseMomentList(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("sst_weight"));
    }
  }
}

TEST(Moments, MergeOfPiecesEqualsTheWhole) {
  Layer whole = MakeLayer(50, 11);
  // The same rows in three pieces of 1, 30 and 19 tokens.
  const auto slice = [](const Rows& x, int64_t begin, int64_t end) {
    const int64_t row = x.heads * x.dim;
    return Rows{
        end - begin, x.heads, x.dim, {x.data.begin() + begin * row, x.data.begin() + end * row}};
  };
  LayerMoments merged;
  bool first = true;
  for (const auto& [begin, end] : {std::pair{0L, 1L}, {1L, 31L}, {31L, 50L}}) {
    LayerMoments piece;
    piece.shape = kShape;
    piece.count = static_cast<uint64_t>(end - begin);
    piece.sums[Moment::kQq] = SecondMoment(slice(whole.q, begin, end));
    piece.sums[Moment::kKk] = SecondMoment(slice(whole.k, begin, end));
    piece.sums[Moment::kVv] = SecondMoment(slice(whole.v, begin, end));
    if (first) {
      merged = piece;
    } else {
      Merge(merged, piece);
    }
    first = false;
  }
  EXPECT_EQ(merged.count, 50U);
  for (const Moment id : {Moment::kQq, Moment::kKk, Moment::kVv}) {
    EXPECT_EQ(merged.At(id).data, whole.moments.At(id).data);
  }
}

TEST(Moments, MergeKeepsOnlyWhatBothHaveAndWhatStaysTrue) {
  LayerMoments a = MakeLayer(20, 1).moments;
  const LayerMoments b = MakeLayer(20, 2).moments;
  LayerMoments other = b;
  other.sums.erase(Moment::kOo);
  Merge(a, other);
  EXPECT_FALSE(a.Has(Moment::kOo));
  EXPECT_FALSE(a.Has(Moment::kSst));  // the two used different qq
  EXPECT_FALSE(a.Has(Moment::kSstWeight));
  EXPECT_TRUE(a.sst_qq_hash.empty());
  EXPECT_TRUE(a.Has(Moment::kQq));
  try {
    a.At(Moment::kSst);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_THAT(error.what(), HasSubstr("'sst'"));
  }
  LayerMoments same = b;
  same.sst_qq_hash = MakeLayer(20, 1).moments.sst_qq_hash;
  LayerMoments c = MakeLayer(20, 1).moments;
  const double before = c.At(Moment::kSst).data[0];
  Merge(c, same);  // equal weights: sums add
  EXPECT_EQ(c.At(Moment::kSst).data[0], before + b.At(Moment::kSst).data[0]);
}

TEST(Moments, MergeRefusesOtherShapesByName) {
  const std::vector<std::pair<LayerShape, std::string>> cases = [] {
    std::vector<std::pair<LayerShape, std::string>> list(8, {kShape, ""});
    list[0].first.q_heads = 4, list[0].second = "query heads 6 and 4";
    list[1].first.kv_heads = 3, list[1].second = "KV heads 2 and 3";
    list[2].first.k_dim = 8, list[2].second = "key head dim 4 and 8";
    list[3].first.v_dim = 8, list[3].second = "value head dim 3 and 8";
    list[4].first.hidden = 8, list[4].second = "hidden size 0 and 8";
    list[5].first.softmax_scale = 1, list[5].second = "softmax scale 0.5 and 1";
    list[6].first.window = 8, list[6].second = "sliding window 0 and 8";
    list[7].first.rope = "none", list[7].second = "rope full and none";
    return list;
  }();
  for (const auto& [shape, part] : cases) {
    LayerMoments a, b;
    a.shape = kShape;
    b.shape = shape;
    try {
      Merge(a, b);
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

// The target written out from its definition over rows; scale by `normaliser` at the end.
Matrix NaiveMean(const Rows& x, int64_t head_begin, int64_t head_end) {
  Matrix c = Matrix::Zero(x.dim, x.dim);
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t h = head_begin; h < head_end; ++h) {
      for (int64_t i = 0; i < x.dim; ++i) {
        for (int64_t j = 0; j < x.dim; ++j) c(i, j) += x(t, h, i) * x(t, h, j);
      }
    }
  }
  return c / static_cast<double>(x.tokens * (head_end - head_begin));
}

// Integer sums are exact; the few divisions round once each: a few units in the last place.
void ExpectClose(const Matrix& a, const Matrix& b) {
  ASSERT_EQ(a.rows(), b.rows());
  EXPECT_LE((a - b).cwiseAbs().maxCoeff(),
            8 * std::numeric_limits<double>::epsilon() * b.cwiseAbs().maxCoeff());
}

TEST(Targets, EqualTheirDefinitionsOverRows) {
  const Layer layer = MakeLayer(37, 5);
  struct Case {
    Target target;
    const Rows* rows;
    int64_t group;
  };
  for (const Case& c : {Case{Target::kQqt, &layer.q, 3}, Case{Target::kKtk, &layer.k, 1},
                        Case{Target::kVtv, &layer.v, 1}, Case{Target::kSvsv, &layer.o, 3}}) {
    const auto pooled = FormTargets(layer.moments, c.target, Grouping::kLayer);
    ASSERT_EQ(pooled.size(), 1U);
    ExpectClose(pooled[0], NaiveMean(*c.rows, 0, c.rows->heads));
    const auto heads = FormTargets(layer.moments, c.target, Grouping::kHead);
    ASSERT_EQ(heads.size(), 2U);
    for (int64_t h = 0; h < 2; ++h) {
      ExpectClose(heads[static_cast<size_t>(h)],
                  NaiveMean(*c.rows, h * c.group, (h + 1) * c.group));
    }
  }
}

TEST(Targets, SstDividesEachHeadByItsOwnWeights) {
  const Layer layer = MakeLayer(37, 6);
  const MomentTensor& sums = layer.moments.At(Moment::kSst);
  const MomentTensor& weights = layer.moments.At(Moment::kSstWeight);
  Matrix mean = Matrix::Zero(3, 3);
  const auto heads = FormTargets(layer.moments, Target::kSst, Grouping::kHead);
  for (size_t h = 0; h < 2; ++h) {
    Matrix head(3, 3);
    for (size_t i = 0; i < 9; ++i) {
      head(static_cast<int64_t>(i) / 3, static_cast<int64_t>(i) % 3) =
          sums.data[h * 9 + i] / weights.data[h];
    }
    ExpectClose(heads[h], head);
    mean += head / 2;
  }
  ExpectClose(FormTargets(layer.moments, Target::kSst, Grouping::kLayer)[0], mean);
}

TEST(Targets, ZeroScoreWeightsGiveZeroNotNan) {
  LayerMoments moments = MakeLayer(5, 7).moments;
  moments.sums[Moment::kSst].data.assign(18, 0);
  moments.sums[Moment::kSstWeight].data.assign(2, 0);
  EXPECT_EQ(FormTargets(moments, Target::kSst, Grouping::kLayer)[0].norm(), 0);
}

TEST(Targets, RefuseWhatIsMissingEmptyOrNotFinite) {
  const auto code = [](const LayerMoments& moments, Target target) {
    try {
      FormTargets(moments, target, Grouping::kHead);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kUsage;
  };
  LayerMoments moments = MakeLayer(5, 8).moments;
  EXPECT_EQ(code(moments, Target::kSvsv), ErrorCode::kUsage);  // fine as it is
  moments.sums[Moment::kOo].data[9 * 4 + 2] = std::numeric_limits<double>::quiet_NaN();
  try {
    FormTargets(moments, Target::kSvsv, Grouping::kHead);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    EXPECT_THAT(error.what(), HasSubstr("svsv of KV head 1: entry (0, 2) is nan"));
  }
  moments.sums.erase(Moment::kOo);
  EXPECT_EQ(code(moments, Target::kSvsv), ErrorCode::kData);
  moments.sums.erase(Moment::kSstWeight);
  EXPECT_EQ(code(moments, Target::kSst), ErrorCode::kData);
  moments.count = 0;
  EXPECT_EQ(code(moments, Target::kQqt), ErrorCode::kData);
}

// sst written out from its definition over single tokens, in pieces and in one block. Rows are
// small integers and the token count a power of two, so the score weights and all sums are exact.
TEST(Sst, EqualsItsDefinitionHoweverTheTokensAreCut) {
  const int64_t tokens = 32;
  const Rows q = IntegerRows(tokens, 6, 4, 21);
  const Rows k = IntegerRows(tokens, 2, 4, 22);
  const Rows v = IntegerRows(tokens, 2, 3, 23);
  LayerMoments moments;
  moments.shape = kShape;
  moments.shape.q_heads = 4;  // a group of two: the divisor stays a power of two
  Rows few{tokens, 4, 4, {}};
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t d = 0; d < 4; ++d) few.data.push_back(q(t, h, d));
    }
  }
  moments.count = static_cast<uint64_t>(tokens);
  moments.sums[Moment::kQq] = SecondMoment(few);

  std::vector<double> weights;
  std::vector<double> weight_sums(2, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      double w = 0;  // mean over query tokens and heads of the group of (q . k)^2
      for (int64_t s = 0; s < tokens; ++s) {
        for (int64_t g = 0; g < 2; ++g) {
          double dot = 0;
          for (int64_t d = 0; d < 4; ++d) dot += few(s, h * 2 + g, d) * k(t, h, d);
          w += dot * dot;
        }
      }
      weights.push_back(w / static_cast<double>(tokens * 2));
      weight_sums[static_cast<size_t>(h)] += weights.back();
    }
  }
  const MomentTensor expected = SecondMoment(v, weights);

  const std::vector<float> kf(k.data.begin(), k.data.end());
  const std::vector<float> vf(v.data.begin(), v.data.end());
  const HeadRows<const float> keys{kf.data(), tokens, 2, 4};
  const HeadRows<const float> values{vf.data(), tokens, 2, 3};
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 32}, {0, 1, 1, 8, 31, 32}, {0, 0, 7, 14, 21, 28, 32}}) {
    MomentTensor sst{{2, 3, 3}, std::vector<double>(18, 0)};
    MomentTensor sums{{2}, std::vector<double>(2, 0)};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      AddSst(ScoreMatrices(moments), keys.Slice(cuts[i], cuts[i + 1]),
             values.Slice(cuts[i], cuts[i + 1]), sst, sums);
    }
    EXPECT_EQ(sst.data, expected.data);
    EXPECT_EQ(sums.data, weight_sums);
  }
  moments.count = 0;
  EXPECT_THROW(ScoreMatrices(moments), Error);
}

TEST(Targets, NamesRoundTripAndSidesAreRight) {
  for (const Target t : {Target::kQqt, Target::kKtk, Target::kSst, Target::kSvsv, Target::kVtv}) {
    EXPECT_EQ(TargetFromName(TargetName(t)), t);
    EXPECT_EQ(IsKeyTarget(t), t == Target::kQqt || t == Target::kKtk);
  }
  EXPECT_THROW(TargetFromName("none"), Error);
}

}  // namespace
}  // namespace oscar
