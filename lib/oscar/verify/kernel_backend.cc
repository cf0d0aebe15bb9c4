#include "oscar/verify/kernel_backend.h"

#include "oscar/core/error.h"
#include "oscar/cuda/device_name.h"

namespace oscar {

bool NamesKernels(const std::string& device) { return device != "cpu"; }

std::unique_ptr<KernelBackend> MakeKernelBackend(const std::string& device, int threads) {
  if (device == "twin") return MakeTwinBackend(threads);
  if (CudaDeviceIndex(device) < 0) {
    throw Error(ErrorCode::kUsage,
                "unknown device '" + device + "': expected cpu, cuda, cuda:<index> or twin");
  }
  return MakeDeviceBackend(
      UseCudaDevice(device, "; --device twin runs the kernels' arithmetic on the CPU"));
}

}  // namespace oscar
