// Traces of a model's run hold what the reference implementation computed for the same token ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>

#include "oscar/core/error.h"
#include "oscar/core/progress.h"
#include "oscar/dump/dump.h"
#include "oscar/h5/file.h"
#include "oscar/trace/trace.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Runs a dump of the ids in `reference` with all rows kept.
TraceReader Dump(const fs::path& model, const fs::path& reference, const std::string& name,
                 const std::string& layers = "") {
  NullProgress progress;
  CancelToken cancel;
  DumpOptions options;
  options.model = model;
  options.token_ids = reference;
  options.rows_tokens = int64_t{1} << 30;
  options.layers = layers;
  options.out = test::FreshFolder("model_parity_" + name) / "out.trace.h5";
  RunDump(options, {&progress, &cancel, 2});
  return TraceReader(options.out);
}

double LargestMagnitude(const std::vector<double>& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

// Rows of the trace against reference rows at the given positions. The trace keeps bfloat16 rows,
// half a unit in the last of 8 bits; `accuracy` (of the largest entry) is what the two forward
// passes and the reference's own rounding may differ by.
void ExpectRows(const TraceReader& trace, int layer, size_t sequence, const H5Group& group,
                const std::vector<int32_t>& positions, double accuracy) {
  const std::pair<const char*, TraceReader::Rows> parts[] = {
      {"q", TraceReader::Rows::kQ}, {"k", TraceReader::Rows::kK}, {"v", TraceReader::Rows::kV}};
  for (const auto& [name, which] : parts) {
    const std::vector<double> expected = group.Read<double>(name);
    const std::vector<float> rows = trace.ReadRows(layer, which, sequence);
    const size_t width = expected.size() / positions.size();
    const double bound = accuracy * LargestMagnitude(expected);
    double worst = 0;
    for (size_t p = 0; p < positions.size(); ++p) {
      for (size_t i = 0; i < width; ++i) {
        const double x = expected[p * width + i];
        const double found = rows[static_cast<size_t>(positions[p]) * width + i];
        worst = std::max(worst, std::abs(found - x) - std::abs(x) / 256 - bound);
      }
    }
    EXPECT_LE(worst, 0) << group.where() << "/" << name << " of layer " << layer;
  }
}

TEST(ModelParity, RowsOfTheTinyModelsEqualTheReference) {
  int models = 0;
  for (const auto& entry : fs::directory_iterator(test::ModelOracle() / "tiny")) {
    const fs::path reference = entry.path() / "reference.h5";
    if (!fs::exists(reference)) continue;
    const H5File expected = H5File::Open(reference);
    std::optional<TraceReader> trace;
    try {
      trace.emplace(Dump(entry.path(), reference, entry.path().filename().string()));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      std::cout << "skipped " << entry.path().filename() << ": " << error.what() << "\n";
      continue;
    }
    const std::vector<std::string> sequences = expected.GroupNames();
    ASSERT_EQ(trace->header().sequences.size(), sequences.size());
    for (size_t s = 0; s < sequences.size(); ++s) {
      const H5Group group = expected.Group(sequences[s]);
      const auto positions = group.Read<int32_t>("qkv_positions");
      for (const int layer : trace->header().layers) {
        ExpectRows(*trace, layer, s, group.Group("layer" + std::to_string(layer)), positions, 1e-4);
      }
    }
    ++models;
  }
  EXPECT_GT(models, 0) << "no supported model under " << test::ModelOracle();
}

TEST(ModelParity, MomentsOfTheRealModelEqualTheReference) {
  const fs::path model = test::SmolLm2Gguf();
  const fs::path reference = test::ModelOracle() / "smollm2" / "reference.h5";
  if (model.empty() || !fs::exists(reference)) {
    GTEST_SKIP() << "the model's GGUF file or its reference is not there";
  }
  const H5File expected = H5File::Open(reference);
  std::vector<int> layers;
  std::string list;
  for (const std::string& name : expected.GroupNames()) {
    if (name.starts_with("layer")) layers.push_back(std::stoi(name.substr(5)));
  }
  std::sort(layers.begin(), layers.end());
  for (const int layer : layers) list += (list.empty() ? "" : ",") + std::to_string(layer);
  const TraceReader trace = Dump(model, reference, "smollm2", list);
  EXPECT_EQ(trace.header().layers, layers);
  const auto positions = expected.Read<int32_t>("positions");
  for (const int layer : layers) {
    const H5Group group = expected.Group("layer" + std::to_string(layer));
    const LayerMoments moments = trace.ReadMoments(layer);
    const std::pair<const char*, Moment> names[] = {
        {"QtQ", Moment::kQq}, {"KtK", Moment::kKk}, {"VtV", Moment::kVv}, {"OtO", Moment::kOo}};
    for (const auto& [name, id] : names) {
      const std::vector<double> sums = group.Read<double>(name, moments.At(id).shape);
      // Relative to the largest entry: what a float32 forward pass leaves of it.
      const double bound = 1e-5 * LargestMagnitude(sums);
      double worst = 0;
      for (size_t i = 0; i < sums.size(); ++i) {
        worst = std::max(worst, std::abs(moments.At(id).data[i] - sums[i]));
      }
      EXPECT_LE(worst, bound) << name << " of layer " << layer;
    }
    ExpectRows(trace, layer, 0, group, positions, 1e-3);  // the reference rows are float16
    EXPECT_TRUE(trace.ReadOProj(layer).has_value());
  }
}

}  // namespace
}  // namespace oscar
