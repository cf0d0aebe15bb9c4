// Errors of a cache against the exact attention. With d_j the error of logit l_j and p the exact
// probabilities of a query,
//   p_hat_j = p_j exp(d_j) / Z,  Z = sum_j p_j exp(d_j),  KL(p || p_hat) = ln Z - sum_j p_j d_j.
#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/metrics/attention.h"
#include "oscar/metrics/attention_parts.h"
#include "oscar/metrics/row_kernels.h"

namespace oscar {

// Differences of a cache's rows to the exact ones, [T, H_kv, D]; empty where nothing changes.
struct CacheChange {
  Windows windows;
  bool use_windows = true;
  std::vector<float> key, value;                // quantised positions
  std::vector<float> key_window, value_window;  // positions in the exact windows
  bool outputs = true;                          // false: the logits only

  KeyRange Quantised(const LayerShape& shape, int64_t query) const {
    return use_windows ? MiddleKeys(shape, windows, query) : VisibleKeys(shape, query);
  }
};

namespace {

// exp() of a larger argument would leave float64; it is shifted instead.
constexpr double kLargestExponent = 600;

std::vector<float> Difference(HeadRows<const float> changed, HeadRows<const float> exact) {
  if (changed.data == nullptr) return {};
  OSCAR_CHECK(changed.tokens == exact.tokens && changed.heads == exact.heads &&
              changed.dim == exact.dim);
  std::vector<float> difference(static_cast<size_t>(exact.size()));
  bool any = false;
  for (size_t i = 0; i < difference.size(); ++i) {
    difference[i] = changed.data[i] - exact.data[i];
    any |= difference[i] != 0;
  }
  if (!any) difference.clear();
  return difference;
}

// Logits and their errors of one query and head, over its visible keys, and the three regions as
// offsets: [0, middle_begin), [middle_begin, middle_end), [middle_end, keys).
struct RowView {
  const float* logits;
  const float* errors;
  int64_t keys;
  double log_sum;
  int64_t bounds[kRegions + 1];
};

// Probabilities before normalisation, exact and changed.
struct RowScratch {
  std::vector<double> p, e;
};

// Adds the row's KL, logit errors and region sums; leaves probabilities in `scratch`.
RangeSums AddRow(const RowView& row, RowScratch& scratch, AttentionErrors& errors) {
  const RowKernels& kernels = ChosenRowKernels();
  const double largest =
      static_cast<double>(kernels.largest_sum(row.logits, row.errors, row.keys)) - row.log_sum;
  const double shift = largest > kLargestExponent ? largest : 0;
  kernels.exponentials(row.logits, row.errors, row.keys, row.log_sum, shift, scratch.p.data(),
                       scratch.e.data());
  RangeSums parts[kRegions];
  RangeSums total;
  for (size_t r = 0; r < kRegions; ++r) {
    const int64_t begin = row.bounds[r];
    parts[r] = kernels.sums(scratch.p.data() + begin, scratch.e.data() + begin, row.logits + begin,
                            row.errors + begin, row.bounds[r + 1] - begin);
    total.Add(parts[r]);
  }
  const double log_z = std::log(total.e / total.p) + shift;
  // Rounding may leave a negative zero of a KL; NaN must stay visible.
  const double kl = log_z - total.pd / total.p;
  errors.attention_kl.Add({kl < 0 ? 0 : kl, 1});
  const auto keys = static_cast<double>(row.keys);
  const double d_mean = total.d / keys;
  const double l_mean = total.l / keys;
  for (size_t r = 0; r < kRegions; ++r) {
    const auto n = static_cast<double>(row.bounds[r + 1] - row.bounds[r]);
    const RangeSums& part = parts[r];
    const ErrorRatio ratio = {part.dd - 2 * d_mean * part.d + n * d_mean * d_mean,
                              part.ll - 2 * l_mean * part.l + n * l_mean * l_mean};
    errors.region_logit_error[r].Add(ratio);
    errors.logit_error.Add(ratio);
    errors.region_mass[r].Add({part.p / total.p, 1});
    errors.region_kl[r].Add({(part.p * log_z - part.pd) / total.p, 1});
  }
  return total;
}

}  // namespace

// One block of queries of one KV head.
class BlockComparison {
 public:
  BlockComparison(const AttentionReference& exact, const CacheChange& change,
                  const QueryBlock& block)
      : exact_(exact),
        change_(change),
        block_(block),
        group_(exact.shape_.group()),
        rows_((block.last - block.first) * group_),
        width_(block.keys.size()),
        first_row_((block.head * static_cast<int64_t>(exact.queries_.size()) + block.first) *
                   group_) {}

  // output_change [queries, H_q * D_v] receives the block's output errors unless it is null.
  AttentionErrors Run(std::vector<float>* output_change) {
    const int64_t last = exact_.queries_[static_cast<size_t>(block_.last - 1)];
    const int64_t first = exact_.queries_[static_cast<size_t>(block_.first)];
    quantised_tile_ = LogitErrors(change_.key, {change_.Quantised(exact_.shape_, first).begin,
                                                change_.Quantised(exact_.shape_, last).end});
    window_tile_ = LogitErrors(change_.key_window, block_.keys);
    shift_ = Weights(change_.outputs && !(change_.key.empty() && change_.key_window.empty()));
    quantised_ = Weights(!change_.value.empty());
    window_ = Weights(!change_.value_window.empty());
    row_errors_.resize(static_cast<size_t>(width_));
    p_hat_ = p_change_ = row_errors_;
    scratch_.p.resize(static_cast<size_t>(width_));
    scratch_.e.resize(static_cast<size_t>(width_));
    for (int64_t r = 0; r < rows_; ++r) CompareRow(r);
    if (change_.outputs) AddOutputs(output_change);
    return errors_;
  }

 private:
  BlockWeights Weights(bool wanted) const {
    return {block_.keys, std::vector<float>(wanted ? static_cast<size_t>(rows_ * width_) : 0), {}};
  }

  // Errors of the block's logits at the keys of `range`; empty when nothing changes.
  std::vector<float> LogitErrors(const std::vector<float>& difference,
                                 const KeyRange& range) const {
    if (difference.empty()) return {};
    std::vector<float> tile(static_cast<size_t>(rows_ * width_));
    const int64_t dim = exact_.k_.dim;
    const int64_t stride = exact_.k_.heads * dim;
    if (!range.empty()) {
      MultiplyTransposed(rows_, range.size(), dim,
                         {exact_.scaled_q_.data() + first_row_ * dim, dim},
                         {difference.data() + range.begin * stride + block_.head * dim, stride},
                         {tile.data() + (range.begin - block_.keys.begin), width_});
    }
    return tile;
  }

  void CompareRow(int64_t r) {
    const int64_t index = block_.first + r / group_;
    const int64_t query = exact_.queries_[static_cast<size_t>(index)];
    const KeyRange visible = VisibleKeys(exact_.shape_, query);
    const KeyRange quantised = change_.Quantised(exact_.shape_, query);
    const KeyRange middle = MiddleKeys(exact_.shape_, change_.windows, query);
    const int64_t origin = block_.keys.begin;
    const KeyRange before = {visible.begin, quantised.begin};
    const KeyRange after = {quantised.end, visible.end};
    std::fill(row_errors_.begin(), row_errors_.end(), 0.0F);
    Copy(window_tile_, r, before, row_errors_);
    Copy(quantised_tile_, r, quantised, row_errors_);
    Copy(window_tile_, r, after, row_errors_);

    const int64_t offset = visible.begin - origin;
    const RowView row = {
        exact_.logits_.data() + block_.head * exact_.logits_per_head_ +
            exact_.logit_offsets_[static_cast<size_t>(index)] + r % group_ * visible.size(),
        row_errors_.data() + offset,
        visible.size(),
        exact_.log_sums_[static_cast<size_t>(first_row_ + r)],
        {0, middle.begin - visible.begin, middle.end - visible.begin, visible.size()}};
    const RangeSums sums = AddRow(row, scratch_, errors_);
    if (!change_.outputs) return;
    ChosenRowKernels().probabilities(scratch_.p.data(), scratch_.e.data(), row.keys, 1 / sums.p,
                                     1 / sums.e, p_hat_.data() + offset, p_change_.data() + offset);
    // Unchanged logits must give no change at all, not that of a fused rounding.
    if (sums.dd == 0) std::fill(p_change_.begin(), p_change_.end(), 0.0F);
    Take(p_change_, r, visible, visible.end, shift_);
    Take(p_hat_, r, quantised, quantised.end, quantised_);
    Take(p_hat_, r, before, visible.end, window_);
    Take(p_hat_, r, after, visible.end, window_);
  }

  // Part `range` of row r of a tile, to a row of its own.
  void Copy(const std::vector<float>& tile, int64_t r, const KeyRange& range,
            std::vector<float>& to) const {
    if (tile.empty() || range.empty()) return;
    const int64_t from = range.begin - block_.keys.begin;
    std::copy_n(tile.data() + r * width_ + from, range.size(), to.data() + from);
  }

  // Part `range` of a row becomes weights of row r.
  void Take(const std::vector<float>& row, int64_t r, const KeyRange& range, int64_t row_end,
            BlockWeights& to) const {
    if (to.data.empty()) return;
    if (static_cast<int64_t>(to.row_end.size()) <= r) to.row_end.push_back(row_end);
    if (range.empty()) return;
    const int64_t from = range.begin - block_.keys.begin;
    std::copy_n(row.data() + from, range.size(), to.data.data() + r * width_ + from);
  }

  void AddOutputs(std::vector<float>* output_change) {
    const HeadRows<const float>& v = exact_.v_;
    const int64_t stride = v.heads * v.dim;
    std::vector<double> out(static_cast<size_t>(rows_ * v.dim), 0.0);
    const auto add = [&](const BlockWeights& weights, const float* values) {
      if (weights.data.empty()) return;
      AddWeightedValues(weights, {values + block_.head * v.dim, stride}, v.dim, out);
    };
    add(shift_, v.data);
    add(quantised_, change_.value.data());
    add(window_, change_.value_window.data());
    for (const double x : out) errors_.output_error.numerator += x * x;
    if (output_change == nullptr) return;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row =
          (block_.first + r / group_) * exact_.shape_.q_heads + block_.head * group_ + r % group_;
      std::copy_n(out.data() + r * v.dim, v.dim, output_change->data() + row * v.dim);
    }
  }

  const AttentionReference& exact_;
  const CacheChange& change_;
  const QueryBlock& block_;
  int64_t group_, rows_, width_, first_row_;
  std::vector<float> quantised_tile_, window_tile_;  // [rows, keys of the block]
  // Weights of V, of V_hat - V at quantised positions and of V_window - V in the windows.
  BlockWeights shift_, quantised_, window_;
  std::vector<float> row_errors_, p_hat_, p_change_;  // [keys of the block]
  RowScratch scratch_;
  AttentionErrors errors_;
};

AttentionErrors AttentionReference::Run(const CacheChange& change, int threads) const {
  std::vector<float> output_change;
  const bool project = change.outputs && !o_proj_.empty();
  if (project) output_change.resize(outputs_.size());
  const int64_t tasks = QueryBlockCount(shape_, queries_);
  std::vector<AttentionErrors> parts(static_cast<size_t>(tasks));
  ParallelFor(tasks, threads, [&](int64_t task) {
    const QueryBlock block = QueryBlockAt(shape_, queries_, task);
    parts[static_cast<size_t>(task)] =
        BlockComparison(*this, change, block).Run(project ? &output_change : nullptr);
  });
  AttentionErrors errors;
  for (const AttentionErrors& part : parts) errors.Add(part);
  if (change.outputs) errors.output_error.denominator = output_energy_;
  if (project) {
    errors.projected_output_error = {ProjectedEnergy(output_change, threads), projected_energy_};
  }
  return errors;
}

AttentionErrors AttentionReference::Compare(const CacheRows& cache, const Windows& windows,
                                            bool use_windows, int threads) const {
  CacheChange change;
  change.windows = windows;
  change.use_windows = use_windows;
  change.key = Difference(cache.k_hat, k_);
  change.value = Difference(cache.v_hat, v_);
  if (use_windows) {
    change.key_window = Difference(cache.k_window, k_);
    change.value_window = Difference(cache.v_window, v_);
  }
  return Run(change, threads);
}

MeanSum AttentionReference::KeyKl(HeadRows<const float> k_hat, const Windows& windows,
                                  bool use_windows, int threads) const {
  CacheChange change;
  change.windows = windows;
  change.use_windows = use_windows;
  change.key = Difference(k_hat, k_);
  change.outputs = false;
  return Run(change, threads).attention_kl;
}

ErrorRatio AttentionReference::ValueError(HeadRows<const float> v_hat, const Windows& windows,
                                          bool use_windows, int threads) const {
  CacheChange change;
  change.windows = windows;
  change.use_windows = use_windows;
  change.value = Difference(v_hat, v_);
  return Run(change, threads).output_error;
}

}  // namespace oscar
