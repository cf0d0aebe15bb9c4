// The launches of the write kernel, one source file for each head size.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/write_params.h"

namespace oscar {

// Shares the blocks out over the jobs and launches. `groups` is one that CheckCacheShape allows.
template <int kDim>
cudaError_t LaunchWriteDim(WriteParams& p, int64_t groups, int multiprocessors,
                           cudaStream_t stream);
extern template cudaError_t LaunchWriteDim<64>(WriteParams&, int64_t, int, cudaStream_t);
extern template cudaError_t LaunchWriteDim<128>(WriteParams&, int64_t, int, cudaStream_t);
extern template cudaError_t LaunchWriteDim<256>(WriteParams&, int64_t, int, cudaStream_t);

}  // namespace oscar
