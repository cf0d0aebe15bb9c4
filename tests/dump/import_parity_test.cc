// Imported official dumps give the covariances that the official script computed from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "oscar/core/progress.h"
#include "oscar/dump/dump.h"
#include "oscar/h5/file.h"
#include "oscar/stats/moments.h"
#include "oscar/trace/trace.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Float64 sums over N tokens in another order differ by about N eps of the sum of magnitudes; for
// the N of any dump (below 1e6) that stays two orders below this bound.
constexpr double kBound = 1e-8;

// Compares with whatever form of the matrix the file keeps under `prefix`: full, lower triangle, or
// first rows and diagonal. `fro` is the Frobenius norm of the whole matrix. Returns false when the
// file keeps none.
bool ExpectMatrix(const H5Group& group, const std::string& prefix, const Matrix& c,
                  const std::string& what) {
  const double fro = c.norm();
  const int64_t d = c.rows();
  bool compared = false;
  const auto near = [&](double found, double expected, int64_t i, int64_t j, double& sum) {
    sum += (found - expected) * (found - expected);
    EXPECT_NEAR(found, expected, kBound * fro) << what << " at (" << i << ", " << j << ")";
  };
  double square = 0;
  const auto data = [&](const std::string& name, const std::vector<int64_t>& shape) {
    compared = true;
    return group.Read<double>(name, shape);
  };
  if (group.Has(prefix)) {
    const std::vector<double> full = data(prefix, {d, d});
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        near(c(i, j), full[static_cast<size_t>(i * d + j)], i, j, square);
      }
    }
  }
  const std::string stem = prefix == "C" ? "C_" : prefix + "_";
  if (group.Has(stem + "tril")) {
    const std::vector<double> tril = data(stem + "tril", {d * (d + 1) / 2});
    size_t at = 0;
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j <= i; ++j) near(c(i, j), tril[at++], i, j, square);
    }
  }
  if (group.Has(stem + "rows")) {
    const int64_t rows = group.Dataset(stem + "rows").shape().at(0);
    const std::vector<double> values = data(stem + "rows", {rows, d});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        near(c(i, j), values[static_cast<size_t>(i * d + j)], i, j, square);
      }
    }
  }
  if (group.Has(stem + "diag")) {
    const std::vector<double> diagonal = data(stem + "diag", {d});
    for (int64_t i = 0; i < d; ++i) near(c(i, i), diagonal[static_cast<size_t>(i)], i, i, square);
  }
  if (group.Has(stem + "fro")) {
    EXPECT_NEAR(fro, data(stem + "fro", {}).at(0), kBound * fro) << what;
  }
  EXPECT_LE(std::sqrt(square), kBound * fro) << what;
  return compared;
}

// Per-KV-head svsv: [H_kv, d, d] in full, lower triangles, or first rows and diagonals.
bool ExpectHeads(const H5Group& group, const std::vector<Matrix>& heads, const std::string& what) {
  const int64_t n = static_cast<int64_t>(heads.size());
  const int64_t d = heads.front().rows();
  bool compared = false;
  for (const std::string& name : group.DatasetNames()) {
    if (!name.starts_with("per_kv_head")) continue;
    const H5Dataset dataset = group.Dataset(name);
    const std::vector<double> values = dataset.Read<double>();
    if (dataset.shape().at(0) != n) {
      ADD_FAILURE() << what << ": " << name;
      return false;
    }
    const size_t each = values.size() / static_cast<size_t>(n);
    for (size_t h = 0; h < heads.size(); ++h) {
      const double* expected = values.data() + h * each;
      const double fro = heads[h].norm();
      const auto near = [&](int64_t i, int64_t j, double x) {
        EXPECT_NEAR(heads[h](i, j), x, kBound * fro) << what << " head " << h;
      };
      if (name == "per_kv_head" || name == "per_kv_head_rows") {
        for (size_t i = 0; i < each; ++i) {
          near(static_cast<int64_t>(i) / d, static_cast<int64_t>(i) % d, expected[i]);
        }
      } else if (name == "per_kv_head_tril") {
        for (int64_t i = 0; i < d; ++i) {
          for (int64_t j = 0; j <= i; ++j) near(i, j, *expected++);
        }
      } else if (name == "per_kv_head_diag") {
        for (int64_t i = 0; i < d; ++i) near(i, i, expected[i]);
      } else {
        continue;
      }
      compared = true;
    }
  }
  return compared;
}

int ComparedTargets(const H5File& expected, const TraceReader& trace, int layer) {
  int compared = 0;
  const LayerMoments moments = trace.ReadMoments(layer);
  const H5Group group = expected.Group("layer_" + std::to_string(layer));
  const auto what = [&](const std::string& name) {
    return expected.where() + " layer " + std::to_string(layer) + " " + name;
  };
  const auto target = [&](Target t) { return FormTargets(moments, t, Grouping::kLayer).at(0); };
  compared += ExpectMatrix(group.Group("k"), "C", target(Target::kQqt), what("qqt")) ? 1 : 0;
  compared += ExpectMatrix(group.Group("v"), "C", target(Target::kSst), what("sst")) ? 1 : 0;
  for (const auto& [name, id] : {std::pair{"ktk", Target::kKtk}, {"vtv", Target::kVtv}}) {
    if (!group.Has(std::string("other/") + name)) continue;
    const H5Group other = group.Group(std::string("other/") + name);
    compared += ExpectMatrix(other, "C", target(id), what(name)) ? 1 : 0;
  }
  if (group.Has("svsv_exact")) {
    const H5Group svsv = group.Group("svsv_exact");
    compared += ExpectMatrix(svsv, "pooled", target(Target::kSvsv), what("svsv")) ? 1 : 0;
    const auto heads = FormTargets(moments, Target::kSvsv, Grouping::kHead);
    compared += ExpectHeads(svsv, heads, what("svsv per head")) ? 1 : 0;
  }
  return compared;
}

TEST(ImportParity, EveryCaseGivesTheOfficialCovariances) {
  const fs::path scratch = test::FreshFolder("import_parity");
  NullProgress progress;
  CancelToken cancel;
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(test::OfficialVectors() / "calibration")) {
    if (!fs::exists(entry.path() / "dump") || !fs::exists(entry.path() / "expected.h5")) continue;
    const H5File expected = H5File::Open(entry.path() / "expected.h5");
    DumpOptions options;
    options.import_dir = entry.path() / "dump";
    options.q_heads = expected.IntAttribute("num_q_heads");
    options.kv_heads = expected.IntAttribute("num_kv_heads");
    options.out = scratch / (entry.path().filename().string() + ".trace.h5");
    options.rows_tokens = 0;
    const DumpResult result = RunDump(options, {&progress, &cancel, 1});
    EXPECT_EQ(result.tokens, expected.IntAttribute("num_tokens")) << entry.path();
    const TraceReader trace(options.out);
    const std::vector<int32_t> layers = expected.Read<int32_t>("layer_ids");
    EXPECT_EQ(trace.header().layers, std::vector<int>(layers.begin(), layers.end()));
    for (const int layer : trace.header().layers) {
      EXPECT_GE(ComparedTargets(expected, trace, layer), 2) << entry.path() << " layer " << layer;
    }
    ++cases;
  }
  EXPECT_GT(cases, 0) << "no case under " << test::OfficialVectors();
}

}  // namespace
}  // namespace oscar
