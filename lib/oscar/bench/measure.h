// Times of work on the device.
#pragma once

#include <functional>

#include "oscar/bench/bench_device.h"

namespace oscar {

// Microseconds of one of `launches` launches work(stream, 0), work(stream, 1), ... recorded in one
// graph: lowest, median and highest over `replays` replays, after two that do not count.
Spread MeasureLaunches(const DeviceStream& stream, int launches, int replays,
                       const std::function<void(Stream, int)>& work);

// Launches of a graph for work that moves `bytes`: about a millisecond or more of it, at least 4.
int LaunchesFor(int64_t bytes);

}  // namespace oscar
