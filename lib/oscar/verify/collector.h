// Samples of one scheme on their way to a SchemeResult: for each sequence its mean over layers, and
// each layer on its own.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "oscar/metrics/attention.h"
#include "oscar/verify/scheme_result.h"

namespace oscar {

// What a cache does to the rows and the attention of one layer of one sequence.
struct Measurement {
  AttentionErrors attention;
  RowErrors key, value;
  bool projected = false;  // whether projected_output_error is known
};

class Collector {
 public:
  Collector(std::string name, std::string label, bool control);

  // Every metric of docs/metrics.md.
  void Add(int layer, size_t sequence, const Measurement& m);
  // One more metric of a layer of a sequence.
  void Add(int layer, size_t sequence, const std::string& metric, double value);
  // A metric that is reported as the worst of all values, in a layer and overall.
  void AddWorst(int layer, const std::string& metric, double value);

  SchemeResult Finish(double bits_per_element);

 private:
  using Samples = std::map<std::string, std::vector<double>>;
  using Sums = std::map<std::string, std::map<size_t, MeanSum>>;
  using Worst = std::map<std::string, Summary>;

  SchemeResult result_;
  Sums overall_;
  std::array<Sums, kRegions> regions_;
  std::map<int, Samples> layers_;
  Worst worst_;
  std::map<int, Worst> layer_worst_;
};

}  // namespace oscar
