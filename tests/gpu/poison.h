// What a kernel finds in shared memory is what the one before left there.
#pragma once

#include "oscar/cuda/device.h"

namespace oscar::test {

// Fills the shared memory of all multiprocessors with NaNs, in stream order.
void PoisonSharedMemory(Stream stream);

}  // namespace oscar::test
