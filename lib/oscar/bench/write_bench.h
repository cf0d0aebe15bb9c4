// Times of the write kernel. Internal.
#pragma once

#include "oscar/bench/bench_device.h"

namespace oscar {

Spread TimeWrite(const WriteCase& c, const DeviceInfo& info, const DeviceStream& stream);

}  // namespace oscar
