// What the benchmark needs LibTorch for; absent in builds without it. Internal.
#pragma once

#include <optional>

#include "oscar/bench/bench_device.h"
#include "oscar/bench/cache_pool.h"

namespace oscar {

bool TorchPartAvailable();

// Nothing when the kernel refuses the case. `pool` serves `c`, a BF16 case.
std::optional<Spread> TimeSdpa(const DecodeCase& c, SdpaKernel kernel, const CachePool& pool,
                               const DeviceInfo& info, int device, const DeviceStream& stream);

// `pool` serves the attention of `c` with enough copies that layers in turn stay out of L2.
StepTimes TimeStep(const StepCase& c, const CachePool& pool, const DeviceInfo& info, int device,
                   const DeviceStream& stream);

}  // namespace oscar
