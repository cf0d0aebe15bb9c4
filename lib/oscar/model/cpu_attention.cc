#include "oscar/model/cpu_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/model/cpu_dispatch.h"

namespace oscar {
namespace {

constexpr int64_t kLanes = 16;
// Queries of a task: a multiple of every register tile's height.
constexpr int64_t kQueries = 48;
// Keys that lie side by side in packed keys, and keys between two updates of the running maxima:
// the scores of a task and its values stay in a first-level cache of 32 KiB for 64 channels.
constexpr int64_t kPanel = 64;
constexpr int64_t kKeys = 2 * kPanel;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

typedef float Vector __attribute__((vector_size(64)));
typedef float Loose __attribute__((vector_size(64), aligned(4), may_alias));

// scores[r, j] = sum_d q[r, d] k[d, j] for kQueries rows and one panel of keys.
// q [kQueries, dim]; k [dim, kPanel]; scores row stride kKeys.
template <size_t kRows, size_t kVectors>
[[gnu::always_inline]] inline void ScoresBody(const float* q, const float* k, size_t dim,
                                              float* scores) {
  for (size_t column = 0; column < kPanel; column += kVectors * kLanes) {
    for (size_t row = 0; row < kQueries; row += kRows) {
      Vector tile[kRows][kVectors] = {};
      for (size_t d = 0; d < dim; ++d) {
        const Loose* right = reinterpret_cast<const Loose*>(k + d * kPanel + column);
        const float* left = q + row * dim + d;
        for (size_t r = 0; r < kRows; ++r) {
          for (size_t v = 0; v < kVectors; ++v) tile[r][v] += left[r * dim] * right[v];
        }
      }
      for (size_t r = 0; r < kRows; ++r) {
        Loose* out = reinterpret_cast<Loose*>(scores + (row + r) * kKeys + column);
        for (size_t v = 0; v < kVectors; ++v) out[v] = tile[r][v];
      }
    }
  }
}

// o[r, c] += sum_j p[r, j] v[j, c] for kQueries rows, `keys` keys and kVectors vectors of columns.
template <size_t kRows, size_t kVectors>
[[gnu::always_inline]] inline void ValuesColumns(const float* p, const float* v, size_t keys,
                                                 size_t padded, float* o) {
  for (size_t row = 0; row < kQueries; row += kRows) {
    Vector tile[kRows][kVectors];
    for (size_t r = 0; r < kRows; ++r) {
      const Loose* from = reinterpret_cast<const Loose*>(o + (row + r) * padded);
      for (size_t c = 0; c < kVectors; ++c) tile[r][c] = from[c];
    }
    for (size_t j = 0; j < keys; ++j) {
      const Loose* right = reinterpret_cast<const Loose*>(v + j * padded);
      const float* left = p + row * kKeys + j;
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t c = 0; c < kVectors; ++c) tile[r][c] += left[r * kKeys] * right[c];
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      Loose* to = reinterpret_cast<Loose*>(o + (row + r) * padded);
      for (size_t c = 0; c < kVectors; ++c) to[c] = tile[r][c];
    }
  }
}

template <size_t kRows, size_t kVectors>
[[gnu::always_inline]] inline void ValuesBody(const float* p, const float* v, size_t keys,
                                              size_t padded, float* o) {
  size_t c = 0;
  for (; c + kVectors * kLanes <= padded; c += kVectors * kLanes) {
    ValuesColumns<kRows, kVectors>(p, v + c, keys, padded, o + c);
  }
  for (; c < padded; c += kLanes) ValuesColumns<kRows, 1>(p, v + c, keys, padded, o + c);
}

// 2^x: 0 below -126, else within 2 ulp for x <= 0. x = n + r, |r| <= 1/2, and the Taylor polynomial
// of degree 6 in r ln 2 (remainder below 1.2e-7 of the result).
[[gnu::always_inline]] inline float Exp2(float x) {
  const float clamped = std::max(x, -126.0F);
  const float n = std::nearbyint(clamped);
  const float r = clamped - n;
  float p = 1.5403530e-4F;  // ln(2)^k / k!
  p = p * r + 1.3333558e-3F;
  p = p * r + 9.6181291e-3F;
  p = p * r + 5.5504109e-2F;
  p = p * r + 2.4022651e-1F;
  p = p * r + 6.9314718e-1F;
  p = p * r + 1.0F;
  const float power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x < -126.0F ? 0.0F : p * power;
}

[[gnu::always_inline]] inline float LargestLane(Vector x) {
  Vector y = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x = x > y ? x : y;
  y = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  x = x > y ? x : y;
  y = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  x = x > y ? x : y;
  return std::max(x[0], x[1]);
}

// Scores -> probabilities relative to the running maxima, for `keys` keys (a multiple of kLanes);
// rescales sums [kQueries, kLanes] and outputs where a maximum rises. A row that saw no key yet has
// maximum -inf.
[[gnu::always_inline]] inline void SoftmaxBody(float* scores, int64_t keys, int64_t padded,
                                               float* maxima, float* sums, float* o) {
  float raised[kQueries];
  float factors[kQueries];
  for (int64_t r = 0; r < kQueries; ++r) {
    const float* row = scores + r * kKeys;
    Vector largest = *reinterpret_cast<const Loose*>(row);
    for (int64_t j = kLanes; j < keys; j += kLanes) {
      const Vector x = *reinterpret_cast<const Loose*>(row + j);
      largest = largest > x ? largest : x;
    }
    raised[r] = std::max(maxima[r], LargestLane(largest));
  }
  for (int64_t r = 0; r < kQueries; ++r) {
    const float shift = raised[r] == kHidden ? 0.0F : raised[r];
    factors[r] = Exp2(maxima[r] - shift);
    maxima[r] = raised[r];
    raised[r] = shift;
  }
  for (int64_t r = 0; r < kQueries; ++r) {
    float* row = scores + r * kKeys;
    float* sum = sums + r * kLanes;
    const float shift = raised[r];
    const float factor = factors[r];
    if (factor != 1.0F) {
      for (int64_t l = 0; l < kLanes; ++l) sum[l] *= factor;
      for (int64_t c = 0; c < padded; ++c) o[r * padded + c] *= factor;
    }
    for (int64_t j = 0; j < keys; j += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const float p = Exp2(row[j + l] - shift);
        row[j + l] = p;
        sum[l] += p;
      }
    }
  }
}

OSCAR_CPU_VARIANTS(Scores, (const float* q, const float* k, size_t dim, float* scores),
                   ((ScoresBody<6, 4>(q, k, dim, scores))), ((ScoresBody<2, 2>(q, k, dim, scores))),
                   ((ScoresBody<2, 1>(q, k, dim, scores))))
OSCAR_CPU_VARIANTS(AddValues,
                   (const float* p, const float* v, size_t keys, size_t padded, float* o),
                   ((ValuesBody<6, 4>(p, v, keys, padded, o))),
                   ((ValuesBody<2, 2>(p, v, keys, padded, o))),
                   ((ValuesBody<2, 1>(p, v, keys, padded, o))))
OSCAR_CPU_VARIANTS(Softmax,
                   (float* scores, int64_t keys, int64_t padded, float* maxima, float* sums,
                    float* o),
                   (SoftmaxBody(scores, keys, padded, maxima, sums, o)),
                   (SoftmaxBody(scores, keys, padded, maxima, sums, o)),
                   (SoftmaxBody(scores, keys, padded, maxima, sums, o)))

int64_t RoundUp(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

}  // namespace

CpuAttention::CpuAttention(HeadRows<const float> q, HeadRows<const float> k,
                           HeadRows<const float> v, double scale, int64_t window,
                           const std::optional<TappedCache>& cache, HeadRows<float> o)
    : q_(q),
      k_(k),
      // Exponentials are powers of two: log2(e) goes into the scale.
      scale_(static_cast<float>(scale * 1.4426950408889634)),
      window_(window),
      o_(o),
      blocks_(RoundUp(q.tokens, kQueries) / kQueries),
      panels_(RoundUp(k.tokens, kKeys) / kPanel),
      padded_v_(RoundUp(v.dim, kLanes)) {
  OSCAR_CHECK(q.dim == k.dim && q.heads % k.heads == 0 && v.heads == k.heads);
  OSCAR_CHECK(o.tokens == q.tokens && o.heads == q.heads && o.dim == v.dim);
  sources_.push_back({k, v, {}, {}});
  if (cache) {
    windows_ = cache->windows;
    sources_.push_back({cache->k, cache->v, {}, {}});
  }
  for (Source& source : sources_) {
    source.keys.resize(static_cast<size_t>(k.heads * panels_ * k.dim * kPanel));
    source.values.resize(static_cast<size_t>(k.heads * panels_ * kPanel * padded_v_));
  }
}

void CpuAttention::Pack(int64_t task) {
  Source& source = sources_[static_cast<size_t>(task / k_.heads)];
  const int64_t head = task % k_.heads;
  float* keys = source.keys.data() + head * panels_ * k_.dim * kPanel;
  float* values = source.values.data() + head * panels_ * kPanel * padded_v_;
  for (int64_t t = 0; t < k_.tokens; ++t) {
    const float* from = source.k.At(t, head);
    float* to = keys + t / kPanel * k_.dim * kPanel + t % kPanel;
    for (int64_t d = 0; d < k_.dim; ++d) to[d * kPanel] = from[d];
    std::copy_n(source.v.At(t, head), source.v.dim, values + t * padded_v_);
  }
}

// The keys that the queries [begin, end) see, at most.
std::vector<CpuAttention::Segment> CpuAttention::SegmentsOf(int64_t begin, int64_t end) const {
  const KeyRange all = {VisibleKeys(begin, window_).begin, end};
  if (sources_.size() == 1) return {{0, all, Segment::kAll}};
  const int64_t sink = windows_.sink;
  std::vector<Segment> out;
  const auto add = [&](size_t source, const KeyRange& range, Segment::Kind kind) {
    const KeyRange keys = Intersect(all, range);
    if (keys.size() > 0) out.push_back({source, keys, kind});
  };
  add(0, {0, sink}, Segment::kSink);
  add(1, {sink, windows_.RecentBegin(end - 1)}, Segment::kCached);
  add(0, {std::max(sink, windows_.RecentBegin(begin)), end}, Segment::kRecent);
  return out;
}

KeyRange CpuAttention::VisiblePart(const Segment& segment, int64_t query) const {
  const KeyRange visible = VisibleKeys(query, window_);
  const int64_t first_recent = windows_.RecentBegin(query);
  switch (segment.kind) {
    case Segment::kAll:
      return visible;
    case Segment::kSink:
      return Intersect(visible, {0, windows_.sink});
    case Segment::kCached:
      return Intersect(visible, {windows_.sink, first_recent});
    case Segment::kRecent:
      return Intersect(visible, {std::max(windows_.sink, first_recent), query + 1});
  }
  OSCAR_CHECK(false);
}

// Takes the keys [first_key, first_key + kKeys) of a segment, first_key in whole panels.
void CpuAttention::AddKeys(const Segment& segment, int64_t kv_head, const KeyRange& queries,
                           int64_t first_key, Scratch& scratch) const {
  const Source& source = sources_[segment.source];
  const int64_t last_key = std::min(first_key + kKeys, RoundUp(segment.keys.end, kPanel));
  const int64_t panel = kv_head * panels_ + first_key / kPanel;
  for (int64_t key = first_key; key < last_key; key += kPanel) {
    const int64_t at = panel + (key - first_key) / kPanel;
    Scores(scratch.queries.data(), source.keys.data() + at * k_.dim * kPanel,
           static_cast<size_t>(k_.dim), scratch.scores.data() + (key - first_key));
  }
  // Visible ranges move up with the query: the first query has the lowest end, the last one the
  // highest begin.
  const bool all_visible = VisiblePart(segment, queries.end - 1).begin <= first_key &&
                           VisiblePart(segment, queries.begin).end >= last_key;
  for (int64_t i = queries.begin; i < queries.end && !all_visible; ++i) {
    const KeyRange visible = VisiblePart(segment, i);
    float* row = scratch.scores.data() + (i - queries.begin) * kKeys;
    const int64_t begin = std::clamp(visible.begin, first_key, last_key) - first_key;
    const int64_t end = std::max(std::clamp(visible.end, first_key, last_key) - first_key, begin);
    std::fill(row, row + begin, kHidden);
    std::fill(row + end, row + (last_key - first_key), kHidden);
  }
  Softmax(scratch.scores.data(), last_key - first_key, padded_v_, scratch.maxima.data(),
          scratch.sums.data(), scratch.outputs.data());
  AddValues(scratch.scores.data(), source.values.data() + panel * kPanel * padded_v_,
            static_cast<size_t>(last_key - first_key), static_cast<size_t>(padded_v_),
            scratch.outputs.data());
}

void CpuAttention::Run(int64_t task, Scratch& scratch) const {
  const int64_t block = blocks_ - 1 - task / q_.heads;  // later queries see more keys
  const int64_t head = task % q_.heads;
  const KeyRange queries = {block * kQueries, std::min((block + 1) * kQueries, q_.tokens)};
  scratch.queries.assign(static_cast<size_t>(kQueries * q_.dim), 0.0F);
  scratch.scores.resize(static_cast<size_t>(kQueries * kKeys));
  scratch.outputs.assign(static_cast<size_t>(kQueries * padded_v_), 0.0F);
  scratch.maxima.assign(static_cast<size_t>(kQueries), kHidden);
  scratch.sums.assign(static_cast<size_t>(kQueries * kLanes), 0.0F);
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    const float* from = q_.At(i, head);
    float* to = scratch.queries.data() + (i - queries.begin) * q_.dim;
    for (int64_t d = 0; d < q_.dim; ++d) to[d] = from[d] * scale_;
  }
  const int64_t kv_head = head / (q_.heads / k_.heads);
  for (const Segment& segment : SegmentsOf(queries.begin, queries.end)) {
    for (int64_t key = segment.keys.begin / kPanel * kPanel; key < segment.keys.end; key += kKeys) {
      AddKeys(segment, kv_head, queries, key, scratch);
    }
  }
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    const int64_t r = i - queries.begin;
    const float* from = scratch.outputs.data() + r * padded_v_;
    const auto lanes = scratch.sums.begin() + r * kLanes;
    const float share = 1.0F / std::accumulate(lanes, lanes + kLanes, 0.0F);
    float* to = o_.At(i, head);
    for (int64_t c = 0; c < o_.dim; ++c) to[c] = from[c] * share;
  }
}

}  // namespace oscar
