#include "oscar/quant/matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "oscar/core/error.h"

// The body is written once over a vector type and inlined into one function per instruction set;
// Eigen cannot be built twice in one program without breaking the one-definition rule.
#if defined(__x86_64__) && defined(__GNUC__)
#define OSCAR_MATMUL_X86 1
#else
#define OSCAR_MATMUL_X86 0
#endif
#define OSCAR_INLINE [[gnu::always_inline]] inline

namespace oscar {
namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float16Lanes __attribute__((vector_size(64)));

// A panel of B is two vectors wide.
template <typename V>
constexpr int64_t kPanel = static_cast<int64_t>(2 * sizeof(V) / sizeof(float));
// Widest panel of any variant, in columns.
constexpr int64_t kMaxPanel = 32;

struct Problem {
  int64_t m, n, k;
  Strided<const float> a, b;
  Strided<float> c;
  bool transposed_b;
};

// Copies columns [first, first + columns) of B (or of B^T) to [k][panel], zero on the right.
template <int64_t panel>
OSCAR_INLINE void PackPanel(const Problem& p, int64_t first, int64_t columns, float* packed) {
  if (!p.transposed_b) {
    for (int64_t d = 0; d < p.k; ++d) {
      const float* const row = p.b.data + d * p.b.stride + first;
      float* const out = packed + d * panel;
      for (int64_t j = 0; j < columns; ++j) out[j] = row[j];
      for (int64_t j = columns; j < panel; ++j) out[j] = 0;
    }
    return;
  }
  if (columns < panel) std::fill_n(packed, p.k * panel, 0.0F);
  for (int64_t j = 0; j < columns; ++j) {
    const float* const row = p.b.data + (first + j) * p.b.stride;
    for (int64_t d = 0; d < p.k; ++d) packed[d * panel + j] = row[d];
  }
}

// `rows` rows of A times one packed panel of two vectors. The sums are two plain arrays and leave
// them one vector at a time: anything else makes GCC keep them in memory instead of registers.
template <typename V, int64_t rows>
OSCAR_INLINE void Tile(const Problem& p, int64_t row, int64_t first, int64_t columns,
                       const float* packed) {
  constexpr int64_t lanes = kPanel<V> / 2;
  V low[static_cast<size_t>(rows)];
  V high[static_cast<size_t>(rows)];
#pragma GCC unroll 8
  for (int64_t i = 0; i < rows; ++i) {
    low[i] = V{};
    high[i] = V{};
  }
  const float* const a = p.a.data + row * p.a.stride;
  for (int64_t d = 0; d < p.k; ++d) {
    V b_low;
    V b_high;
    std::memcpy(&b_low, packed + d * kPanel<V>, sizeof(V));
    std::memcpy(&b_high, packed + d * kPanel<V> + lanes, sizeof(V));
#pragma GCC unroll 8
    for (int64_t i = 0; i < rows; ++i) {
      const float x = a[i * p.a.stride + d];
      low[i] += x * b_low;
      high[i] += x * b_high;
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < rows; ++i) {
    float* const c = p.c.data + (row + i) * p.c.stride + first;
    const V out_low = low[i];
    const V out_high = high[i];
    if (columns == kPanel<V>) {
      std::memcpy(c, &out_low, sizeof(V));
      std::memcpy(c + lanes, &out_high, sizeof(V));
    } else {
      float out[kPanel<V>];
      std::memcpy(out, &out_low, sizeof(V));
      std::memcpy(out + lanes, &out_high, sizeof(V));
      for (int64_t j = 0; j < columns; ++j) c[j] = out[j];
    }
  }
}

template <typename V, int64_t rows>
OSCAR_INLINE void Run(const Problem& p, float* packed) {
  constexpr int64_t panel = kPanel<V>;
  static_assert(panel <= kMaxPanel);
  for (int64_t first = 0; first < p.n; first += panel) {
    const int64_t columns = std::min(panel, p.n - first);
    PackPanel<panel>(p, first, columns, packed);
    int64_t row = 0;
    for (; row + rows <= p.m; row += rows) Tile<V, rows>(p, row, first, columns, packed);
    for (; row < p.m; ++row) Tile<V, 1>(p, row, first, columns, packed);
  }
}

void RunPortable(const Problem& p, float* packed) { Run<Float4, 6>(p, packed); }

#if OSCAR_MATMUL_X86
// 6 x 2 sums, 2 columns of B and 1 broadcast fit 16 registers; 8 x 2 fit 32.
[[gnu::target("avx2,fma")]] void RunAvx2(const Problem& p, float* packed) {
  Run<Float8, 6>(p, packed);
}
[[gnu::target("avx512f,avx512vl,avx512dq,avx2,fma")]] void RunAvx512(const Problem& p,
                                                                     float* packed) {
  Run<Float16Lanes, 8>(p, packed);
}
#endif

struct Variant {
  std::string_view name;
  void (*run)(const Problem&, float*);
};

Variant ChooseVariant() {
#if OSCAR_MATMUL_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return {"avx512f", RunAvx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2+fma", RunAvx2};
  }
#endif
  return {"portable", RunPortable};
}

const Variant& ChosenVariant() {
  static const Variant variant = ChooseVariant();
  return variant;
}

void RunProblem(const Problem& p) {
  OSCAR_CHECK(p.m >= 0 && p.n >= 0 && p.k >= 0);
  thread_local std::vector<float> packed;
  const auto size = static_cast<size_t>(p.k * kMaxPanel);
  if (packed.size() < size) packed.resize(size);
  ChosenVariant().run(p, packed.data());
}

}  // namespace

void Multiply(int64_t m, int64_t n, int64_t k, Strided<const float> a, Strided<const float> b,
              Strided<float> c) {
  RunProblem({m, n, k, a, b, c, false});
}

void MultiplyTransposed(int64_t m, int64_t n, int64_t k, Strided<const float> a,
                        Strided<const float> b, Strided<float> c) {
  RunProblem({m, n, k, a, b, c, true});
}

std::string_view MatmulInstructionSet() { return ChosenVariant().name; }

}  // namespace oscar
