#include "oscar/bench/measure.h"

#include <algorithm>
#include <vector>

namespace oscar {

Spread MeasureLaunches(const DeviceStream& stream, int launches, int replays,
                       const std::function<void(Stream, int)>& work) {
  const DeviceGraph graph(stream, [&](Stream s) {
    for (int i = 0; i < launches; ++i) work(s, i);
  });
  for (int i = 0; i < 2; ++i) graph.Launch(stream);
  stream.Synchronize();
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    times.push_back(1000 * DeviceMilliseconds(stream, [&](Stream) { graph.Launch(stream); }) /
                    launches);
  }
  std::ranges::sort(times);
  return {times.front(), times[times.size() / 2], times.back()};
}

int LaunchesFor(int64_t bytes, int64_t copies) {
  const int64_t enough = std::clamp<int64_t>(int64_t{4'000'000'000} / bytes, 4, 100);
  return static_cast<int>(std::clamp<int64_t>(copies, enough, 2000));
}

}  // namespace oscar
