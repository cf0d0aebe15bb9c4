// The loops over the keys of one query that cost the time of a comparison: exponentials and sums in
// float64, built for several instruction sets and chosen at run time. Private to this module.
#pragma once

#include <cstdint>

namespace oscar {

// Sums over a range of keys. l: exact logits, d: their errors, p: exact probabilities, e: the
// changed ones, neither normalised.
struct RangeSums {
  double p = 0, e = 0, pd = 0;          // sum p, e, p d
  double d = 0, dd = 0, l = 0, ll = 0;  // sum d, d^2, l, l^2
  void Add(const RangeSums& other) {
    p += other.p;
    e += other.e;
    pd += other.pd;
    d += other.d;
    dd += other.dd;
    l += other.l;
    ll += other.ll;
  }
};

struct RowKernels {
  // sum of exp(l[j] - shift) over n keys.
  double (*sum_exp)(const float* l, int64_t n, double shift);
  // p[j] = exp(l[j] - log_sum), e[j] = exp(l[j] - log_sum - shift + d[j]); arguments below -708
  // give 0, above 709 are the caller's fault (shift). Relative error below 4 2^-53 for each.
  void (*exponentials)(const float* l, const float* d, int64_t n, double log_sum, double shift,
                       double* p, double* e);
  RangeSums (*sums)(const double* p, const double* e, const float* l, const float* d, int64_t n);
  // largest l[j] + d[j]; n >= 1. Of no use when one of them is NaN.
  float (*largest_sum)(const float* l, const float* d, int64_t n);
  // p_hat[j] = e[j] e_factor, change[j] = p_hat - p[j] p_factor, rounded to float32.
  void (*probabilities)(const double* p, const double* e, int64_t n, double p_factor,
                        double e_factor, float* p_hat, float* change);
};

const RowKernels& ChosenRowKernels();

}  // namespace oscar
