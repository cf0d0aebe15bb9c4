#include "oscar/cuda/device_name.h"

#include <charconv>

#include "oscar/core/error.h"
#include "oscar/cuda/device.h"

namespace oscar {

int CudaDeviceIndex(const std::string& name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return -1;
  int index = -1;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 5, end, index);
  return parsed.ec == std::errc() && parsed.ptr == end && index >= 0 ? index : -1;
}

int UseCudaDevice(const std::string& name, const std::string& alternative) {
  const int index = CudaDeviceIndex(name);
  OSCAR_CHECK(index >= 0);
  if (!HasCuda()) {
    throw Error(ErrorCode::kDevice, "device " + name + ": this build has no CUDA kernels",
                "build with -DOSCAR_CUDA=ON where the CUDA toolkit is installed, and run it on a "
                "Hopper GPU" +
                    alternative);
  }
  if (DeviceCount() == 0) {
    throw Error(ErrorCode::kDevice, "device " + name + ": no CUDA device can be used",
                "the kernels need a Hopper GPU and its driver" + alternative);
  }
  UseDevice(index);
  return index;
}

}  // namespace oscar
