// What attention makes of errors in keys and values: logits, attention KL, outputs, by region.
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
  double Relative() const;  // 0 when both sums are 0
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
  MeanSum attention_kl;          // KL(p || p_hat) in nats, per (query, head)
  ErrorRatio logit_error;        // q.k * scale, centred per row (softmax forgets a constant)
  ErrorRatio output_error;       // attention output o
  ErrorRatio projected_output_error;  // o W_O; denominator 0 when W_O is unknown
  std::array<ErrorRatio, kRegions> region_logit_error;
  std::array<MeanSum, kRegions> region_mass;  // exact attention mass per (query, head)
  std::array<MeanSum, kRegions> region_kl;    // sum over the region's keys of p ln(p / p_hat)
  void Add(const AttentionErrors& other);
};

// Exact attention of one sequence at chosen query positions, to be compared with reconstructions.
// Rows are float32 in the original coordinates: q [T, H_q, D_k], k [T, H_kv, D_k],
// v [T, H_kv, D_v]; the views must outlive the object. Logits, softmax and sums in float64 or with
// equal care (docs/metrics.md states the error bound).
class AttentionReference {
 public:
  AttentionReference(const LayerShape& shape, HeadRows<const float> q, HeadRows<const float> k,
                     HeadRows<const float> v, std::span<const int64_t> queries, int threads);

  // Keys and values replaced where `windows` say so (everywhere when use_windows is false).
  // o_proj: [hidden, H_q * D_v] float32, or empty.
  AttentionErrors Compare(HeadRows<const float> k_hat, HeadRows<const float> v_hat,
                          const Windows& windows, bool use_windows, std::span<const float> o_proj,
                          int threads) const;
  // The key half only: attention KL with k_hat (clip search for c_K).
  MeanSum KeyKl(HeadRows<const float> k_hat, const Windows& windows, bool use_windows,
                int threads) const;
  // The value half only: output error under the exact probabilities (clip search for c_V).
  ErrorRatio ValueError(HeadRows<const float> v_hat, const Windows& windows, bool use_windows,
                        int threads) const;

 private:
  LayerShape shape_;
  HeadRows<const float> q_, k_, v_;
  std::vector<int64_t> queries_;
  std::vector<std::vector<float>> probabilities_;  // [queries][H_q * (query + 1)]
  std::vector<double> outputs_;                    // [queries, H_q, D_v]
};

// `count` query positions of a sequence of `length` tokens, evenly spaced over the positions at
// which some key is quantised (all positions when use_windows is false), the last one included.
// Throws Error(kData) naming sink, recent and length when there is none.
std::vector<int64_t> ChooseQueries(int64_t length, int64_t count, const Windows& windows,
                                   bool use_windows);

}  // namespace oscar
