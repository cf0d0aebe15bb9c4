// Small dense products in float32, the inner loop of rotations and of attention metrics. Built for
// several instruction sets and chosen at run time; every variant adds the terms of an entry in the
// same order (k ascending), so variants differ only in whether a product is rounded before it is
// added (with or without fused multiply-add).
#pragma once

#include <cstdint>
#include <string_view>

namespace oscar {

// A row-major matrix whose rows are `stride` elements apart.
template <typename T>
struct Strided {
  T* data = nullptr;
  int64_t stride = 0;
};

// C = A B, A [m, k], B [k, n], C [m, n]. C must not overlap A or B.
// |C - A B| <= k 2^-24 / (1 - k 2^-24) |A| |B| entry by entry, and an entry depends on its row of A
// and its column of B only, not on m, n or the position.
void Multiply(int64_t m, int64_t n, int64_t k, Strided<const float> a, Strided<const float> b,
              Strided<float> c);

// C = A B^T, A [m, k], B [n, k], C [m, n]. Otherwise as Multiply.
void MultiplyTransposed(int64_t m, int64_t n, int64_t k, Strided<const float> a,
                        Strided<const float> b, Strided<float> c);

// The instruction set in use: "avx512f", "avx2+fma" or "portable".
std::string_view MatmulInstructionSet();

}  // namespace oscar
