#include "oscar/bench/measure.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace oscar {

std::vector<Spread> MeasureInTurn(const DeviceStream& stream, int replays,
                                  const std::vector<std::function<void(Stream)>>& works) {
  std::vector<std::unique_ptr<DeviceGraph>> graphs;
  for (const auto& work : works) graphs.push_back(std::make_unique<DeviceGraph>(stream, work));
  for (int i = 0; i < 2; ++i) {
    for (const auto& graph : graphs) graph->Launch(stream);
  }
  stream.Synchronize();
  std::vector<std::vector<double>> times(graphs.size());
  for (int i = 0; i < replays; ++i) {
    for (size_t g = 0; g < graphs.size(); ++g) {
      times[g].push_back(1000 *
                         DeviceMilliseconds(stream, [&](Stream) { graphs[g]->Launch(stream); }));
    }
  }
  std::vector<Spread> spreads;
  for (std::vector<double>& of_graph : times) {
    std::ranges::sort(of_graph);
    spreads.push_back({of_graph.front(), of_graph[of_graph.size() / 2], of_graph.back()});
  }
  return spreads;
}

Spread MeasureLaunches(const DeviceStream& stream, int launches, int replays,
                       const std::function<void(Stream, int)>& work) {
  const Spread all = MeasureInTurn(stream, replays, {[&](Stream s) {
                                     for (int i = 0; i < launches; ++i) work(s, i);
                                   }})
                         .front();
  return {all.low / launches, all.median / launches, all.high / launches};
}

int LaunchesFor(int64_t bytes, int64_t copies) {
  const int64_t enough = std::clamp<int64_t>(int64_t{4'000'000'000} / bytes, 4, 100);
  return static_cast<int>(std::clamp<int64_t>(copies, enough, 2000));
}

}  // namespace oscar
