#include "oscar/metrics/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__)
#define OSCAR_ROWS_X86 1
#else
#define OSCAR_ROWS_X86 0
#endif
#define OSCAR_INLINE [[gnu::always_inline]] inline

namespace oscar {
namespace {

constexpr int64_t kLanes = 8;
typedef double Double8 __attribute__((vector_size(64)));
typedef int64_t Mask8 __attribute__((vector_size(64)));
typedef uint64_t Bits8 __attribute__((vector_size(64)));
typedef float Float8 __attribute__((vector_size(32)));

// Values are passed by reference: vectors in registers would depend on the instruction set.
template <typename V, typename T>
OSCAR_INLINE void Load(const T* from, int64_t count, V& to) {
  to = V{};
  if (count >= kLanes) {
    std::memcpy(&to, from, sizeof(V));
  } else {
    T part[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) part[i] = from[i];
    std::memcpy(&to, part, sizeof(V));
  }
}

template <typename V, typename T>
OSCAR_INLINE void Store(const V& from, int64_t count, T* to) {
  if (count >= kLanes) {
    std::memcpy(to, &from, sizeof(V));
  } else {
    T part[kLanes];
    std::memcpy(part, &from, sizeof(V));
    for (int64_t i = 0; i < count; ++i) to[i] = part[i];
  }
}

// exp(x) for x <= 709: x = k ln 2 + r with |r| <= ln 2 / 2, Taylor to r^13 (remainder 4e-18), 2^k
// through the exponent bits. Below -708 the result is 0; NaN stays NaN.
OSCAR_INLINE void Exp(Double8& x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 32 bits: k times it is exact
  constexpr double kLn2Low = 1.9082149292705877e-10;
  constexpr double kMagic = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const Mask8 vanishing = x < -708.0;
  const Double8 shifted = x * kLog2E + kMagic;
  const Double8 k = shifted - kMagic;
  const Double8 r = (x - k * kLn2High) - k * kLn2Low;
  constexpr double kInverseFactorials[] = {1.0 / 6227020800.0,
                                           1.0 / 479001600.0,
                                           1.0 / 39916800.0,
                                           1.0 / 3628800.0,
                                           1.0 / 362880.0,
                                           1.0 / 40320.0,
                                           1.0 / 5040.0,
                                           1.0 / 720.0,
                                           1.0 / 120.0,
                                           1.0 / 24.0,
                                           1.0 / 6.0,
                                           0.5,
                                           1.0,
                                           1.0};
  Double8 sum = Double8{} + kInverseFactorials[0];
#pragma GCC unroll 13
  for (int i = 1; i < 14; ++i) sum = sum * r + kInverseFactorials[i];
  Bits8 bits;  // unsigned: of NaN and of vanishing arguments they wrap around
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 52) + (uint64_t{1023} << 52);
  Double8 power;
  std::memcpy(&power, &bits, sizeof(power));
  const Double8 result = sum * power;
  x = vanishing ? Double8{} : result;
}

OSCAR_INLINE double Total(const Double8& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

OSCAR_INLINE double SumExpBody(const float* l, int64_t n, double shift) {
  Double8 sum{};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    Float8 narrow;
    Load(l + j, kLanes, narrow);
    Double8 x = __builtin_convertvector(narrow, Double8) - shift;
    Exp(x);
    sum += x;
  }
  double total = Total(sum);
  for (; j < n; ++j) total += std::exp(static_cast<double>(l[j]) - shift);
  return total;
}

OSCAR_INLINE void ExponentialsBody(const float* l, const float* d, int64_t n, double log_sum,
                                   double shift, double* p, double* e) {
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = n - j;
    Float8 logits;
    Float8 errors;
    Load(l + j, count, logits);
    Load(d + j, count, errors);
    Double8 x = __builtin_convertvector(logits, Double8) - log_sum;
    Double8 y = (x - shift) + __builtin_convertvector(errors, Double8);
    Exp(x);
    Exp(y);
    Store(x, count, p + j);
    Store(y, count, e + j);
  }
}

OSCAR_INLINE RangeSums SumsBody(const double* p, const double* e, const float* l, const float* d,
                                int64_t n) {
  Double8 sp{}, se{}, spd{}, sd{}, sdd{}, sl{}, sll{};
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = n - j;
    Double8 vp;
    Double8 ve;
    Float8 fl;
    Float8 fd;
    Load(p + j, count, vp);
    Load(e + j, count, ve);
    Load(l + j, count, fl);
    Load(d + j, count, fd);
    const Double8 vl = __builtin_convertvector(fl, Double8);
    const Double8 vd = __builtin_convertvector(fd, Double8);
    sp += vp;
    se += ve;
    spd += vp * vd;
    sd += vd;
    sdd += vd * vd;
    sl += vl;
    sll += vl * vl;
  }
  return {Total(sp), Total(se), Total(spd), Total(sd), Total(sdd), Total(sl), Total(sll)};
}

OSCAR_INLINE float LargestSumBody(const float* l, const float* d, int64_t n) {
  float largest[kLanes];
  std::fill_n(largest, kLanes, -std::numeric_limits<float>::infinity());
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float sum = l[j + lane] + d[j + lane];
      largest[lane] = sum > largest[lane] ? sum : largest[lane];
    }
  }
  for (; j < n; ++j) largest[0] = std::max(largest[0], l[j] + d[j]);
  return *std::max_element(largest, largest + kLanes);
}

OSCAR_INLINE void ProbabilitiesBody(const double* p, const double* e, int64_t n, double p_factor,
                                    double e_factor, float* p_hat, float* change) {
  for (int64_t j = 0; j < n; ++j) {
    const double changed = e[j] * e_factor;
    p_hat[j] = static_cast<float>(changed);
    change[j] = static_cast<float>(changed - p[j] * p_factor);
  }
}

// One set of functions per instruction set, each with the bodies inlined.
#define OSCAR_ROW_KERNELS(suffix, attribute)                                                     \
  attribute double SumExp##suffix(const float* l, int64_t n, double shift) {                     \
    return SumExpBody(l, n, shift);                                                              \
  }                                                                                              \
  attribute void Exponentials##suffix(const float* l, const float* d, int64_t n, double log_sum, \
                                      double shift, double* p, double* e) {                      \
    ExponentialsBody(l, d, n, log_sum, shift, p, e);                                             \
  }                                                                                              \
  attribute RangeSums Sums##suffix(const double* p, const double* e, const float* l,             \
                                   const float* d, int64_t n) {                                  \
    return SumsBody(p, e, l, d, n);                                                              \
  }                                                                                              \
  attribute float LargestSum##suffix(const float* l, const float* d, int64_t n) {                \
    return LargestSumBody(l, d, n);                                                              \
  }                                                                                              \
  attribute void Probabilities##suffix(const double* p, const double* e, int64_t n,              \
                                       double p_factor, double e_factor, float* p_hat,           \
                                       float* change) {                                          \
    ProbabilitiesBody(p, e, n, p_factor, e_factor, p_hat, change);                               \
  }                                                                                              \
  constexpr RowKernels k##suffix = {SumExp##suffix, Exponentials##suffix, Sums##suffix,          \
                                    LargestSum##suffix, Probabilities##suffix};

OSCAR_ROW_KERNELS(Portable, )
#if OSCAR_ROWS_X86
OSCAR_ROW_KERNELS(Avx2, [[gnu::target("avx2,fma")]])
OSCAR_ROW_KERNELS(Avx512, [[gnu::target("avx512f,avx512vl,avx512dq,avx2,fma")]])
#endif

const RowKernels& Choose() {
#if OSCAR_ROWS_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
  return kPortable;
}

}  // namespace

const RowKernels& ChosenRowKernels() {
  static const RowKernels& chosen = Choose();
  return chosen;
}

}  // namespace oscar
