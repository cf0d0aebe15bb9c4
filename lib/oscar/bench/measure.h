// Times of work on the device.
#pragma once

#include <functional>
#include <vector>

#include "oscar/bench/bench_device.h"

namespace oscar {

// Microseconds of one of `launches` launches work(stream, 0), work(stream, 1), ... recorded in one
// graph: lowest, median and highest over `replays` replays, after two that do not count.
Spread MeasureLaunches(const DeviceStream& stream, int launches, int replays,
                       const std::function<void(Stream, int)>& work);

// Microseconds of each of `works`, recorded in a graph of its own. The graphs are replayed in turn,
// so that what the clock does to one it does to all.
std::vector<Spread> MeasureInTurn(const DeviceStream& stream, int replays,
                                  const std::vector<std::function<void(Stream)>>& works);

// Launches of a graph for work that moves `bytes` in each: about a millisecond of it, at least 4,
// and all `copies` of the data that are taken in turn, so that a replay finds none of them in the
// L2 cache. At most 2000: below about 30 KB a launch the cache wins.
int LaunchesFor(int64_t bytes, int64_t copies);

}  // namespace oscar
