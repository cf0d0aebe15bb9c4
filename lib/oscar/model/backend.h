// What this build's LibTorch is. No LibTorch type appears in this header.
#pragma once

#include <string>

namespace oscar {

// Version of the headers this was built with, for example "2.11.0".
std::string LibTorchVersion();

// True when a CUDA build of LibTorch is linked (OSCAR_TORCH_CUDA) and a device is there.
bool CudaAvailable();

// Throws Error(kUsage) for a name that is not cpu, cuda or cuda:<index>, and Error(kDevice) when
// the device cannot be used.
void CheckDevice(const std::string& name);

}  // namespace oscar
