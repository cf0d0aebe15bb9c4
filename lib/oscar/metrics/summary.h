// Statistics over sequences: the sequences are the independent samples of an evaluation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace oscar {

// Mean of n samples and its standard error s / sqrt(n), s the sample standard deviation (n - 1).
// No standard error below 2 samples. A NaN among the samples makes both NaN.
struct Summary {
  double mean = 0;
  std::optional<double> se;
  int64_t n = 0;
};

// An empty span gives n = 0 and mean 0: no data, not a zero.
Summary Summarize(std::span<const double> samples);

// Ratio of the means of paired samples, a / b, with the standard error of its linearisation,
// s(a_i - r b_i) / (mean(b) sqrt(n)): differences between sequences that both share cancel. Spans
// of equal length. 1 when both means are 0, infinite when only b's is.
Summary SummarizeRatio(std::span<const double> a, std::span<const double> b);

}  // namespace oscar
