#include "oscar/verify/kernel_backend.h"

#include <charconv>

#include "oscar/core/error.h"

namespace oscar {
namespace {

int DeviceIndex(const std::string& device) {
  if (device == "cuda") return 0;
  int index = -1;
  if (device.starts_with("cuda:")) {
    const char* const end = device.data() + device.size();
    const auto parsed = std::from_chars(device.data() + 5, end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end) index = -1;
  }
  if (index < 0) {
    throw Error(ErrorCode::kUsage,
                "unknown device '" + device + "': expected cpu, cuda, cuda:<index> or twin");
  }
  return index;
}

}  // namespace

bool NamesKernels(const std::string& device) { return device != "cpu"; }

std::unique_ptr<KernelBackend> MakeKernelBackend(const std::string& device, int threads) {
  if (device == "twin") return MakeTwinBackend(threads);
  const int index = DeviceIndex(device);
  if (!HasCuda()) {
    throw Error(ErrorCode::kDevice, "device " + device + ": this build has no CUDA kernels",
                "build with cmake --preset release -DOSCAR_CUDA=ON where the CUDA toolkit is "
                "installed; --device twin runs the kernels' arithmetic on the CPU");
  }
  if (DeviceCount() == 0) {
    throw Error(ErrorCode::kDevice, "device " + device + ": no CUDA device can be used",
                "the kernels need a Hopper GPU and its driver; --device twin runs their arithmetic "
                "on the CPU");
  }
  return MakeDeviceBackend(index);
}

}  // namespace oscar
