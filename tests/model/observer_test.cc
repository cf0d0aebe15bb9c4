// Moments of rows that lie in memory, against their formulas in float64.
#include "oscar/model/observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/compare.h"
#include "oscar/core/error.h"
#include "oscar/core/random.h"

namespace oscar {
namespace {

struct Sequence {
  int64_t tokens;
  std::vector<BFloat16> q, k, v;
};

Sequence RandomSequence(const LayerShape& s, int64_t tokens, uint64_t seed) {
  Random random(seed);
  const auto make = [&](int64_t heads, int64_t dim) {
    std::vector<BFloat16> out;
    for (int64_t i = 0; i < tokens * heads * dim; ++i) {
      // Channels of different scale, and a mean.
      const double scale = std::exp(0.5 * static_cast<double>(i % 7) - 1);
      out.push_back(ToBFloat16(static_cast<float>(scale * (random.Normal() + 0.3))));
    }
    return out;
  };
  return {tokens, make(s.q_heads, s.k_dim), make(s.kv_heads, s.k_dim), make(s.kv_heads, s.v_dim)};
}

double At(const std::vector<BFloat16>& x, int64_t heads, int64_t dim, int64_t t, int64_t h,
          int64_t i) {
  return ToFloat(x[static_cast<size_t>((t * heads + h) * dim + i)]);
}

using Vector = std::vector<double>;

// sum_t w(t) x(t, h, i) x(t, h, j) for all heads.
template <typename Value, typename Weight>
Vector Outer(int64_t tokens, int64_t heads, int64_t dim, const Value& x, const Weight& w) {
  Vector out(static_cast<size_t>(heads * dim * dim));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < dim; ++i) {
        for (int64_t j = 0; j < dim; ++j) {
          out[static_cast<size_t>((h * dim + i) * dim + j)] += w(t, h) * x(t, h, i) * x(t, h, j);
        }
      }
    }
  }
  return out;
}

void AddTo(Vector& total, const Vector& part) {
  total.resize(part.size());
  for (size_t i = 0; i < part.size(); ++i) total[i] += part[i];
}

// Causal attention outputs of one sequence: [tokens, q_heads, v_dim].
Vector Outputs(const LayerShape& s, const Sequence& x) {
  Vector out;
  for (int64_t i = 0; i < x.tokens; ++i) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      const int64_t kv = h / s.group();
      const int64_t first = s.window > 0 ? std::max<int64_t>(0, i - s.window + 1) : 0;
      Vector p;
      double sum = 0;
      for (int64_t j = first; j <= i; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < s.k_dim; ++d) {
          dot += At(x.q, s.q_heads, s.k_dim, i, h, d) * At(x.k, s.kv_heads, s.k_dim, j, kv, d);
        }
        p.push_back(std::exp(dot * s.softmax_scale));
        sum += p.back();
      }
      for (int64_t d = 0; d < s.v_dim; ++d) {
        double o = 0;
        for (int64_t j = first; j <= i; ++j) {
          o += p[static_cast<size_t>(j - first)] / sum * At(x.v, s.kv_heads, s.v_dim, j, kv, d);
        }
        out.push_back(o);
      }
    }
  }
  return out;
}

struct Named {
  const char* name;
  LayerShape shape;
};

LayerShape Shape(int64_t q_heads, int64_t kv_heads, int64_t k_dim, int64_t v_dim, int64_t window) {
  LayerShape s;
  s.q_heads = q_heads;
  s.kv_heads = kv_heads;
  s.k_dim = k_dim;
  s.v_dim = v_dim;
  s.softmax_scale = 0.4 / std::sqrt(static_cast<double>(k_dim));
  s.window = window;
  return s;
}

class RowObserverTest : public testing::TestWithParam<Named> {};

INSTANTIATE_TEST_SUITE_P(Shapes, RowObserverTest,
                         testing::Values(Named{"equal_dims", Shape(4, 2, 16, 16, 0)},
                                         Named{"wider_keys", Shape(3, 1, 48, 32, 0)},
                                         Named{"wider_values", Shape(2, 2, 8, 40, 0)},
                                         Named{"window", Shape(4, 4, 16, 16, 9)},
                                         Named{"eight_groups", Shape(8, 1, 33, 33, 0)}),
                         [](const auto& shape) { return shape.param.name; });

TEST_P(RowObserverTest, MomentsMatchTheFormulas) {
  const LayerShape& s = GetParam().shape;
  std::vector<Sequence> sequences;
  int64_t tokens = 0;
  for (const int64_t length : {1, 2, 31, 150}) {
    sequences.push_back(RandomSequence(s, length, static_cast<uint64_t>(100 + length)));
    tokens += length;
  }
  RowObserver observer(5, s, {ParseMomentList("all"), 2}, 2);
  for (const Sequence& x : sequences) {
    observer.AddSequence({x.q.data(), x.tokens, s.q_heads, s.k_dim},
                         {x.k.data(), x.tokens, s.kv_heads, s.k_dim},
                         {x.v.data(), x.tokens, s.kv_heads, s.v_dim});
  }
  const LayerCapture capture = observer.Finish();
  EXPECT_EQ(capture.layer, 5);
  EXPECT_EQ(capture.moments.count, static_cast<uint64_t>(tokens));
  EXPECT_EQ(capture.moments.shape, s);
  // Rows of the first two sequences, unchanged.
  ASSERT_EQ(capture.q.size(), static_cast<size_t>(3 * s.q_heads * s.k_dim));
  EXPECT_EQ(capture.q.back().bits, sequences[1].q.back().bits);
  EXPECT_EQ(capture.v.size(), static_cast<size_t>(3 * s.kv_heads * s.v_dim));
  EXPECT_EQ(capture.k.front().bits, sequences[0].k.front().bits);

  std::map<Moment, Vector> expected;
  const auto one = [](int64_t, int64_t) { return 1.0; };
  for (const Sequence& x : sequences) {
    const auto q = [&](int64_t t, int64_t h, int64_t i) {
      return At(x.q, s.q_heads, s.k_dim, t, h, i);
    };
    const auto k = [&](int64_t t, int64_t h, int64_t i) {
      return At(x.k, s.kv_heads, s.k_dim, t, h, i);
    };
    const auto v = [&](int64_t t, int64_t h, int64_t i) {
      return At(x.v, s.kv_heads, s.v_dim, t, h, i);
    };
    const Vector outputs = Outputs(s, x);
    const auto o = [&](int64_t t, int64_t h, int64_t i) {
      return outputs[static_cast<size_t>((t * s.q_heads + h) * s.v_dim + i)];
    };
    AddTo(expected[Moment::kQq], Outer(x.tokens, s.q_heads, s.k_dim, q, one));
    AddTo(expected[Moment::kKk], Outer(x.tokens, s.kv_heads, s.k_dim, k, one));
    AddTo(expected[Moment::kVv], Outer(x.tokens, s.kv_heads, s.v_dim, v, one));
    AddTo(expected[Moment::kOo], Outer(x.tokens, s.q_heads, s.v_dim, o, one));
    const auto sum = [&](int64_t heads, int64_t dim, const auto& value) {
      Vector out(static_cast<size_t>(heads * dim));
      for (int64_t t = 0; t < x.tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t i = 0; i < dim; ++i) {
            out[static_cast<size_t>(h * dim + i)] += value(t, h, i);
          }
        }
      }
      return out;
    };
    AddTo(expected[Moment::kQSum], sum(s.q_heads, s.k_dim, q));
    AddTo(expected[Moment::kKSum], sum(s.kv_heads, s.k_dim, k));
    AddTo(expected[Moment::kVSum], sum(s.kv_heads, s.v_dim, v));
  }
  // Second pass: weights from the finished sum of q^T q.
  for (const Sequence& x : sequences) {
    Vector weights;
    for (int64_t t = 0; t < x.tokens; ++t) {
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        double w = 0;
        for (int64_t g = 0; g < s.group(); ++g) {
          const double* qq = expected[Moment::kQq].data() + (h * s.group() + g) * s.k_dim * s.k_dim;
          for (int64_t i = 0; i < s.k_dim; ++i) {
            for (int64_t j = 0; j < s.k_dim; ++j) {
              w += At(x.k, s.kv_heads, s.k_dim, t, h, i) * qq[i * s.k_dim + j] *
                   At(x.k, s.kv_heads, s.k_dim, t, h, j);
            }
          }
        }
        weights.push_back(w / static_cast<double>(tokens * s.group()));
      }
    }
    const auto w = [&](int64_t t, int64_t h) {
      return weights[static_cast<size_t>(t * s.kv_heads + h)];
    };
    const auto v = [&](int64_t t, int64_t h, int64_t i) {
      return At(x.v, s.kv_heads, s.v_dim, t, h, i);
    };
    AddTo(expected[Moment::kSst], Outer(x.tokens, s.kv_heads, s.v_dim, v, w));
    Vector total(static_cast<size_t>(s.kv_heads));
    for (int64_t t = 0; t < x.tokens; ++t) {
      for (int64_t h = 0; h < s.kv_heads; ++h) total[static_cast<size_t>(h)] += w(t, h);
    }
    AddTo(expected[Moment::kSstWeight], total);
  }
  ASSERT_EQ(capture.moments.sums.size(), expected.size());
  for (const auto& [id, values] : expected) {
    const MomentTensor& actual = capture.moments.At(id);
    EXPECT_EQ(actual.shape, MomentShape(id, s)) << InfoOf(id).name;
    test::WorstError worst;
    for (size_t i = 0; i < values.size(); ++i) worst.Add(actual.data[i], values[i]);
    // float64 throughout: some hundred roundings of 1.1e-16.
    EXPECT_LE(worst.relative(), 1e-13) << InfoOf(id).name << ": " << worst.Where();
  }
  EXPECT_EQ(capture.moments.sst_qq_hash, HashOf(capture.moments.At(Moment::kQq)));
}

TEST(RowObserver, CutsIntoCallsDoNotChangeTheSumsOfRows) {
  const LayerShape s = Shape(2, 1, 16, 16, 0);
  const Sequence x = RandomSequence(s, 200, 3);
  const auto run = [&](const std::vector<int64_t>& cuts, int threads) {
    RowObserver observer(0, s, {ParseMomentList("qq,kk,vv,q_sum"), 0}, threads);
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      observer.AddSequence(HeadRows<const BFloat16>{x.q.data(), 200, 2, 16}.Slice(begin, end),
                           HeadRows<const BFloat16>{x.k.data(), 200, 1, 16}.Slice(begin, end),
                           HeadRows<const BFloat16>{x.v.data(), 200, 1, 16}.Slice(begin, end));
      begin = end;
    }
    return observer.Finish().moments;
  };
  const LayerMoments whole = run({200}, 1);
  for (const LayerMoments& other : {run({200}, 2), run({7, 7, 100, 200}, 2)}) {
    EXPECT_EQ(other.count, 200U);
    for (const auto& [id, tensor] : whole.sums) {
      test::WorstError worst;
      for (size_t i = 0; i < tensor.data.size(); ++i) {
        worst.Add(other.At(id).data[i], tensor.data[i]);
      }
      EXPECT_LE(worst.relative(), 1e-14) << InfoOf(id).name;
    }
  }
  EXPECT_EQ(run({200}, 2).At(Moment::kQq).data, whole.At(Moment::kQq).data);
}

TEST(RowObserver, NamesTheValueThatIsNotFinite) {
  const LayerShape s = Shape(2, 1, 4, 4, 0);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    RowObserver observer(7, s, {ParseMomentList("all"), 0}, 1);
    Sequence x = RandomSequence(s, 10, 4);
    const auto add = [&] {
      observer.AddSequence({x.q.data(), 10, 2, 4}, {x.k.data(), 10, 1, 4}, {x.v.data(), 10, 1, 4});
    };
    add();
    x.k[6 * 4 + 1] = ToBFloat16(bad);
    try {
      add();
      FAIL() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_STREQ(error.what(),
                   "layer 7, sequence 1: k has a value that is not finite at token 6");
    }
  }
}

TEST(RowObserver, RefusesWrongShapesAndNothing) {
  const LayerShape s = Shape(2, 1, 4, 4, 0);
  const Sequence x = RandomSequence(s, 10, 5);
  RowObserver observer(3, s, {ParseMomentList("qq"), 0}, 1);
  const auto code = [&](const auto& function) {
    try {
      function();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kUsage;
  };
  EXPECT_EQ(
      code([&] {
        observer.AddSequence({x.q.data(), 10, 2, 4}, {x.k.data(), 9, 1, 4}, {x.v.data(), 10, 1, 4});
      }),
      ErrorCode::kMismatch);
  EXPECT_EQ(code([&] {
              observer.AddSequence({x.q.data(), 10, 1, 8}, {x.k.data(), 10, 1, 4},
                                   {x.v.data(), 10, 1, 4});
            }),
            ErrorCode::kMismatch);
  observer.AddSequence({x.q.data(), 0, 2, 4}, {x.k.data(), 0, 1, 4}, {x.v.data(), 0, 1, 4});
  EXPECT_EQ(code([&] { observer.Finish(); }), ErrorCode::kData);
}

}  // namespace
}  // namespace oscar
