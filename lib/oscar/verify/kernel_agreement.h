// Whether kernels did what their CPU twins do, on the kernels' own bytes.
#pragma once

#include <cstdint>

#include "oscar/verify/kernel_case.h"

namespace oscar {

struct KernelAgreement {
  // Bytes of codes, scales and zeros that differ from the twin's on the kernel's own rotated rows,
  // bytes outside the written slots included, and values of the bf16 tier that differ from these
  // rows.
  int64_t wrong_bytes = 0;
  // Largest distance of a rotated element from x R in units of its allowance: one rounding to
  // bfloat16 and the float32 sum. At most 1 is right. Without a rotation: 0, or infinite where a
  // row is not the input's.
  double row_error = 0;
  // Of the checked requests against float64 attention over the kernel's own cache: relative
  // Frobenius distance of the outputs, largest distance of a log-sum-exp beyond four float32 steps.
  double output_error = 0, lse_error = 0;
};

// Requests of each sequence whose decode is checked: evenly spaced, the last one included.
inline constexpr int64_t kCheckedRequests = 16;

KernelAgreement CheckAgreement(const KernelCase& c, const KernelOutput& out, int threads);

}  // namespace oscar
