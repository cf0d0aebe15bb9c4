// The BLAS behind LAPACKE.
#pragma once

#include <string>

namespace oscar {

// Threads that one BLAS or LAPACK call may use. The order of additions, and with it the last bits,
// may depend on this number; callers that parallelise over matrices set 1. Process-wide.
void SetBlasThreads(int threads);

// Version, options and core type of the library in use, for example
// "OpenBLAS 0.3.21 ... Haswell MAX_THREADS=64".
std::string BlasDescription();

}  // namespace oscar
