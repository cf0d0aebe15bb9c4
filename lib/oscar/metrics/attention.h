// What attention makes of errors in keys and values: logits, attention KL, outputs, by region.
// docs/metrics.md gives the formulas and the error bounds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/view.h"

namespace oscar {

// Relative squared error as a pair of sums: error = sqrt(numerator / denominator).
struct ErrorRatio {
  double numerator = 0;    // sum |x_hat - x|^2
  double denominator = 0;  // sum |x|^2
  void Add(const ErrorRatio& other) {
    numerator += other.numerator;
    denominator += other.denominator;
  }
  // 0 when both sums are 0, infinity when only the denominator is.
  double Relative() const;
};

// A mean as sum and count.
struct MeanSum {
  double sum = 0;
  int64_t count = 0;
  void Add(const MeanSum& other) {
    sum += other.sum;
    count += other.count;
  }
  double Mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

// Regions of keys seen from a query: before `sink`, the quantised middle, the `recent` newest.
enum class Region { kSink, kMiddle, kRecent };
inline constexpr int kRegions = 3;

// Errors of one layer on one sequence, summed over the chosen queries and all query heads.
struct AttentionErrors {
  MeanSum attention_kl;               // KL(p || p_hat) in nats, per (query, head)
  ErrorRatio logit_error;             // q.k * scale, centred per row (softmax forgets a constant)
  ErrorRatio output_error;            // attention output o
  ErrorRatio projected_output_error;  // o W_O; denominator 0 when W_O is unknown
  std::array<ErrorRatio, kRegions> region_logit_error;  // centred by the mean of the whole row
  std::array<MeanSum, kRegions> region_mass;            // exact attention mass per (query, head)
  std::array<MeanSum, kRegions> region_kl;  // sum over the region's keys of p ln(p / p_hat)
  void Add(const AttentionErrors& other);
};

struct QueryBlock;      // attention_parts.h
struct CacheChange;     // compare.cc
class BlockComparison;  // compare.cc

// What a cache gives back for one sequence, in the original coordinates.
struct CacheRows {
  HeadRows<const float> k_hat, v_hat;  // quantised rows [T, H_kv, D]
  // Rows of the exact windows; no data: the model's own rows.
  HeadRows<const float> k_window, v_window;
};

// Exact attention of one sequence at chosen query positions, to be compared with reconstructions.
// Rows are float32 in the original coordinates: q [T, H_q, D_k], k [T, H_kv, D_k],
// v [T, H_kv, D_v]; o_proj [hidden, H_q * D_v] or empty. The views must outlive the object.
// Differences are propagated, never two results subtracted: a logit's error is q.(k_hat - k), an
// output's error (p_hat - p) V + p_hat (V_hat - V). So equal rows give exactly 0, and a small error
// keeps its digits. Softmax and all sums over keys, queries and heads are float64.
class AttentionReference {
 public:
  // Queries must be ascending positions of the sequence.
  AttentionReference(const LayerShape& shape, HeadRows<const float> q, HeadRows<const float> k,
                     HeadRows<const float> v, std::span<const int64_t> queries, int threads,
                     std::span<const float> o_proj = {});

  // Keys and values replaced where `windows` say so (everywhere when use_windows is false).
  AttentionErrors Compare(const CacheRows& cache, const Windows& windows, bool use_windows,
                          int threads) const;
  // The key half only: attention KL with k_hat (clip search for c_K).
  MeanSum KeyKl(HeadRows<const float> k_hat, const Windows& windows, bool use_windows,
                int threads) const;
  // The value half only: output error under the exact probabilities (clip search for c_V).
  ErrorRatio ValueError(HeadRows<const float> v_hat, const Windows& windows, bool use_windows,
                        int threads) const;

  // The same errors of outputs [queries, H_q, D_v] that a kernel computed from its own cache: plain
  // differences to the exact outputs, so rounding of the kernel's shows. Without W_O the projected
  // error is 0 over 0.
  ErrorRatio OutputError(std::span<const float> outputs) const;
  ErrorRatio ProjectedOutputError(std::span<const float> outputs, int threads) const;
  // ln sum_j exp(l_j) of a chosen query (by index) and query head.
  double LogSum(int64_t query, int64_t q_head) const;

  // Exact attention output [queries, H_q, D_v].
  const std::vector<double>& outputs() const { return outputs_; }

 private:
  friend class BlockComparison;
  void FillBlock(const QueryBlock& block);
  // Compares all blocks and sums over them in a fixed order; see compare.cc.
  AttentionErrors Run(const CacheChange& change, int threads) const;
  double ProjectedEnergy(const std::vector<float>& rows, int threads) const;

  LayerShape shape_;
  HeadRows<const float> q_, k_, v_;
  std::span<const float> o_proj_;
  std::vector<int64_t> queries_;
  // Rows (query, member of the group) of KV head h: first row h * queries * group.
  std::vector<float> scaled_q_;         // [H_kv, queries, group, D_k], times the softmax scale
  std::vector<int64_t> logit_offsets_;  // [queries], into one head's part of logits_
  int64_t logits_per_head_ = 0;         // all rows of one KV head
  std::vector<float> logits_;           // [H_kv][queries][group][visible keys]
  std::vector<double> log_sums_;        // [H_kv, queries, group]: ln sum exp of the logits
  std::vector<double> outputs_;         // [queries, H_q, D_v]
  double output_energy_ = 0;            // sum |o|^2
  double projected_energy_ = 0;         // sum |o W_O|^2
};

// `count` query positions of a sequence of `length` tokens, evenly spaced over the positions at
// which some key is quantised (all positions when use_windows is false), the last one included.
// With flush > 1: one position of each of `count` equal parts, chosen by a fixed stream of random
// numbers, so that all distances to a flush occur.
// `sliding_window` is the layer's, 0 for none. Throws Error(kData) naming sink, recent, length and
// the sliding window when there is none.
std::vector<int64_t> ChooseQueries(int64_t length, int64_t count, const Windows& windows,
                                   bool use_windows, int64_t sliding_window = 0);

// Relative error of the rows of a cache as the last query sees them, all heads together.
struct RowErrors {
  ErrorRatio total;
  std::array<ErrorRatio, kRegions> region;
  void Add(const RowErrors& other);
};
// x, x_hat [tokens, heads, dim]; window_rows without data: exact windows. Rows that the layer's
// sliding window (0: none) hides from the last query do not count.
RowErrors CompareRows(HeadRows<const float> x, HeadRows<const float> x_hat,
                      HeadRows<const float> window_rows, const Windows& windows, bool use_windows,
                      int64_t sliding_window = 0);

}  // namespace oscar
