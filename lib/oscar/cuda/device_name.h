// Devices as command lines name them.
#pragma once

#include <string>

namespace oscar {

// The index of "cuda" (0) or "cuda:<index>"; -1 for anything else.
int CudaDeviceIndex(const std::string& name);

// UseDevice() by name, and its index. Throws Error(kDevice) when this build has no kernels or this
// machine no such device, saying what is needed; `alternative` ends the hint. `name` must be one
// that CudaDeviceIndex knows.
int UseCudaDevice(const std::string& name, const std::string& alternative);

}  // namespace oscar
