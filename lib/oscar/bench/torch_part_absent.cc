// A build without LibTorch.
#include "oscar/bench/torch_part.h"
#include "oscar/core/error.h"

namespace oscar {

bool TorchPartAvailable() { return false; }

std::optional<Spread> TimeSdpa(const DecodeCase& /*c*/, SdpaKernel /*kernel*/,
                               const CachePool& /*pool*/, const DeviceInfo& /*info*/,
                               int /*device*/, const DeviceStream& /*stream*/) {
  return std::nullopt;
}

StepTimes TimeStep(const StepCase& /*c*/, const CachePool& /*pool*/, const DeviceInfo& /*info*/,
                   int /*device*/, const DeviceStream& /*stream*/) {
  throw Error(ErrorCode::kUnsupported, "this build has no LibTorch",
              "build with -DOSCAR_TORCH_CUDA=ON against a CUDA build of LibTorch");
}

}  // namespace oscar
