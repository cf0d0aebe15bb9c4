#include "oscar/cuda/write_launch.cuh"

namespace oscar {

template cudaError_t LaunchWriteDim<128>(WriteParams&, int64_t, int, cudaStream_t);

}  // namespace oscar
