// oscar-zoo diff: whether two rotation files, or two pairs, mean the same.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"
#include "oscar/inspect/commands.h"
#include "oscar/inspect/manifest_diff.h"
#include "oscar/inspect/objective.h"
#include "oscar/inspect/ranges.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// From best to worst; the verdict on a file is that of its worst layer.
enum class Sameness {
  kEqual,        // every bit
  kRounding,     // columns equal to kColumnTolerance
  kServed,       // equal after rounding to bfloat16
  kColumns,      // equal up to order and sign of columns
  kCalibration,  // other matrices from the same eigenvectors
  kSettings,     // folders only: rotations as above, but served with other settings
  kDifferent,
};

struct SamenessText {
  std::string_view name, meaning;
};

SamenessText TextOf(Sameness sameness) {
  switch (sameness) {
    case Sameness::kEqual:
      return {"equal", "every bit equal"};
    case Sameness::kRounding:
      return {"equal_within_rounding", "equal up to rounding"};
    case Sameness::kServed:
      return {"equal_as_served", "equal after rounding to bfloat16"};
    case Sameness::kColumns:
      return {"equal_up_to_columns",
              "equal up to order and sign of columns: equivalent when one group spans the head; "
              "never mix K of one with Q of the other"};
    case Sameness::kCalibration:
      return {"same_calibration",
              "other matrices from the same eigenvectors (signs, composition or solver)"};
    case Sameness::kSettings:
      return {"different_settings", "the manifests ask for other settings of the cache"};
    case Sameness::kDifferent:
      return {"different", "different"};
  }
  FailCheck("every verdict has a text", __FILE__, __LINE__);
}

// Two columns of length one are the same when they differ by less than about a hundred times what
// rounding to float32 does to them.
constexpr double kColumnTolerance = 1e-5;

double LargestDifference(const Matrix& a, const Matrix& b) { return (a - b).cwiseAbs().maxCoeff(); }

bool EqualAsServed(const ZooLayer& a, const ZooLayer& b) {
  return std::equal(a.rotation.begin(), a.rotation.end(), b.rotation.begin(),
                    [](float x, float y) { return RoundToBFloat16(x) == RoundToBFloat16(y); });
}

// Every column of `a` is +- a column of `b` of its own.
bool EqualUpToColumns(const Matrix& a, const Matrix& b, double tolerance) {
  const Matrix products = a.transpose() * b;
  std::vector<bool> used(static_cast<size_t>(a.cols()), false);
  for (Eigen::Index i = 0; i < a.cols(); ++i) {
    Eigen::Index best = 0;
    products.row(i).cwiseAbs().maxCoeff(&best);
    const double sign = products(i, best) < 0 ? -1 : 1;
    if (used[static_cast<size_t>(best)]) return false;
    if (!((a.col(i) - sign * b.col(best)).norm() <= tolerance)) return false;
    used[static_cast<size_t>(best)] = true;
  }
  return true;
}

// U diag(eigenvalues) U^T: independent of signs and of the basis inside equal eigenvalues.
Matrix Covariance(const Matrix& basis, const std::vector<float>& eigenvalues) {
  Matrix scaled = basis;
  for (Eigen::Index i = 0; i < basis.cols(); ++i) {
    scaled.col(i) *= static_cast<double>(eigenvalues[static_cast<size_t>(i)]);
  }
  return scaled * basis.transpose();
}

// Same eigenvectors, judged by the second moment they stand for, or by columns where no eigenvalues
// are stored.
bool SameBasis(const ZooLayer& a, const Matrix& basis_a, const ZooLayer& b, const Matrix& basis_b) {
  if (a.eigenvalues.empty() || b.eigenvalues.empty()) {
    return EqualUpToColumns(basis_a, basis_b, kColumnTolerance);
  }
  const Matrix c = Covariance(basis_a, a.eigenvalues);
  const double roundoff = std::max(RoundoffOf(a.stored_as), RoundoffOf(b.stored_as));
  // Either basis is off by roundoff * sqrt(D), on both sides of the eigenvalues.
  const double tolerance = 8 * roundoff * std::sqrt(static_cast<double>(a.dim));
  return (c - Covariance(basis_b, b.eigenvalues)).norm() <= tolerance * c.norm();
}

bool SameCalibration(const ZooLayer& a, const Objective& from_a, const ZooLayer& b,
                     const Objective& from_b) {
  if (from_a.target != from_b.target || !from_a.target) return false;
  for (int64_t head = 0; head < MatricesOf(a); ++head) {
    bool same = false;
    for (const Matrix& basis_a : CandidateBases(from_a.composition, a, head)) {
      for (const Matrix& basis_b : CandidateBases(from_b.composition, b, head)) {
        same = same || SameBasis(a, basis_a, b, basis_b);
      }
    }
    if (!same) return false;
  }
  return true;
}

struct LayerDiff {
  Sameness sameness = Sameness::kDifferent;
  double largest = std::numeric_limits<double>::infinity();  // max |a - b|; infinite: no such pair
};

LayerDiff CompareLayers(const ZooLayer& a, const Objective& from_a, const ZooLayer& b,
                        const Objective& from_b) {
  LayerDiff diff;
  if (a.dim != b.dim || a.heads != b.heads) return diff;
  bool rounding = true, columns = true;
  diff.largest = 0;
  for (int64_t head = 0; head < MatricesOf(a); ++head) {
    const Matrix x = RotationOf(a, head);
    const Matrix y = RotationOf(b, head);
    diff.largest = std::max(diff.largest, LargestDifference(x, y));
    rounding = rounding && (x - y).colwise().norm().maxCoeff() <= kColumnTolerance;
    columns = columns && EqualUpToColumns(x, y, kColumnTolerance);
  }
  if (a.rotation == b.rotation && a.eigenvalues == b.eigenvalues) {
    diff.sameness = Sameness::kEqual;
  } else if (rounding) {
    diff.sameness = Sameness::kRounding;
  } else if (EqualAsServed(a, b)) {
    diff.sameness = Sameness::kServed;
  } else if (columns) {
    diff.sameness = Sameness::kColumns;
  } else if (SameCalibration(a, from_a, b, from_b)) {
    diff.sameness = Sameness::kCalibration;
  }
  return diff;
}

// Differences of everything but matrices.
std::vector<Difference> MetadataDifferences(const ZooFile& a, const ZooFile& b) {
  const auto describe = [](const ZooFile& file) {
    return Value(Value::Object{{"format_version", file.format_version},
                               {"objective", file.objective},
                               {"source_grouping", file.source_grouping},
                               {"extra", file.extra}});
  };
  return FindDifferences(describe(a), describe(b));
}

struct FileDiff {
  Sameness sameness = Sameness::kEqual;
  std::map<Sameness, std::vector<int64_t>> layers;
  std::vector<int64_t> only_a, only_b;
  double largest = 0;
  std::vector<Difference> metadata;
};

FileDiff CompareFiles(const ZooFile& a, const ZooFile& b, ZooSide side) {
  FileDiff diff;
  diff.metadata = MetadataDifferences(a, b);
  const Objective from_a = ParseObjective(a.objective, side);
  const Objective from_b = ParseObjective(b.objective, side);
  for (const auto& [id, layer] : a.layers) {
    const auto other = b.layers.find(id);
    if (other == b.layers.end()) {
      diff.only_a.push_back(id);
      continue;
    }
    const LayerDiff one = CompareLayers(layer, from_a, other->second, from_b);
    diff.layers[one.sameness].push_back(id);
    diff.sameness = std::max(diff.sameness, one.sameness);
    diff.largest = std::max(diff.largest, one.largest);
  }
  for (const auto& [id, layer] : b.layers) {
    if (!a.layers.contains(id)) diff.only_b.push_back(id);
  }
  if (!diff.only_a.empty() || !diff.only_b.empty()) diff.sameness = Sameness::kDifferent;
  return diff;
}

Value::Array IdArray(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

Value FullLines(const std::vector<Difference>& differences) {
  Value::Array lines;
  for (const Difference& one : differences) lines.emplace_back(FullLine(one));
  return lines;
}

Value RecordOf(const FileDiff& diff) {
  Value record;
  record["verdict"] = TextOf(diff.sameness).name;
  record["max_difference"] = std::isfinite(diff.largest) ? Value(diff.largest) : Value();
  record["layers"] = Value::Object();
  for (const auto& [sameness, ids] : diff.layers) {
    record["layers"][std::string(TextOf(sameness).name)] = IdArray(ids);
  }
  record["only_in_first"] = IdArray(diff.only_a);
  record["only_in_second"] = IdArray(diff.only_b);
  record["metadata"] = FullLines(diff.metadata);
  return record;
}

std::string Describe(const std::string& name, const FileDiff& diff) {
  std::string text = fmt::format("{}: {}\n", name, TextOf(diff.sameness).meaning);
  for (const auto& [sameness, ids] : diff.layers) {
    if (diff.layers.size() > 1 || sameness == Sameness::kDifferent) {
      text += fmt::format("  {}: layers {}\n", TextOf(sameness).name, RangesOf(ids));
    }
  }
  if (!diff.only_a.empty()) {
    text += fmt::format("  only in the first: layers {}\n", RangesOf(diff.only_a));
  }
  if (!diff.only_b.empty()) {
    text += fmt::format("  only in the second: layers {}\n", RangesOf(diff.only_b));
  }
  if (!std::isfinite(diff.largest)) {
    text += "  shapes differ\n";
  } else if (diff.largest > 0) {
    text += fmt::format("  largest difference of an entry {:.3g}\n", diff.largest);
  }
  constexpr size_t kListed = 20;
  for (size_t i = 0; i < std::min(kListed, diff.metadata.size()); ++i) {
    text += fmt::format("  {}\n", BriefLine(diff.metadata[i]));
  }
  if (diff.metadata.size() > kListed) {
    text += fmt::format("  ... and {} more, all in --json\n", diff.metadata.size() - kListed);
  }
  return text;
}

void Add(const std::string& name, const FileDiff& diff, Sameness& worst, InspectReport& report) {
  worst = std::max(worst, diff.sameness);
  report.record[name] = RecordOf(diff);
  report.text += Describe(name, diff);
}

// Settings stand before everything else: they are what a reader may overlook.
void AddManifests(const ZooEntry& first, const ZooEntry& second, Sameness& worst,
                  InspectReport& report) {
  report.record["manifest_in"] = first.manifest    ? second.manifest ? "both" : "first"
                                 : second.manifest ? "second"
                                                   : "none";
  if (!first.manifest || !second.manifest) {
    if (first.manifest || second.manifest) {
      report.text += fmt::format("manifest: only the {} has one, settings are not compared\n",
                                 first.manifest ? "first" : "second");
    }
    return;
  }
  const ManifestDiff diff = CompareManifests(first, second);
  report.record["settings"] = Value::Array(diff.settings.begin(), diff.settings.end());
  report.record["manifest"] = FullLines(diff.rest);
  if (!diff.settings.empty()) {
    worst = std::max(worst, Sameness::kSettings);
    std::string text = fmt::format("settings: {}\n", TextOf(Sameness::kSettings).meaning);
    for (const std::string& line : diff.settings) text += fmt::format("  {}\n", Printable(line));
    report.text = text + report.text;
  }
  if (!diff.rest.empty()) report.text += "rest of the manifest:\n" + RestText(diff.rest);
}

void CompareEntries(const fs::path& a, const fs::path& b, Sameness& worst, InspectReport& report) {
  const ZooEntry first = ReadZooEntry(a);
  const ZooEntry second = ReadZooEntry(b);
  Add("key", CompareFiles(first.key, second.key, ZooSide::kKey), worst, report);
  Add("value", CompareFiles(first.value, second.value, ZooSide::kValue), worst, report);
  AddManifests(first, second, worst, report);
}

}  // namespace

InspectReport DiffZoo(const fs::path& a, const fs::path& b) {
  if (fs::is_directory(a) != fs::is_directory(b)) {
    throw Error(ErrorCode::kUsage, "diff takes two files or two folders, not one of each");
  }
  InspectReport report;
  report.record = NewRecord("diff");
  report.record["first"] = a.string();
  report.record["second"] = b.string();
  Sameness worst = Sameness::kEqual;
  if (fs::is_directory(a)) {
    CompareEntries(a, b, worst, report);
  } else {
    const ZooFile first = ReadZooFile(a);
    const ZooFile second = ReadZooFile(b);
    Add("file", CompareFiles(first, second, GuessSide(first, a)), worst, report);
  }
  report.record["verdict"] = TextOf(worst).name;
  report.passed = worst < Sameness::kSettings;
  report.text = fmt::format("verdict: {}\n", TextOf(worst).name) + report.text;
  return report;
}

}  // namespace oscar
