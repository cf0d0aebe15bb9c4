// What a rotation file or a zoo folder must fulfil before anything is served with it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/printable.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

// Sum of products with eight partial sums, so that it does not wait for each addition.
double Dot(const double* a, const double* b, int64_t n) {
  std::array<double, 8> sums{};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[static_cast<size_t>(j)] += a[i + j] * b[i + j];
  }
  double sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const double part : sums) sum += part;
  return sum;
}

// max |R R^T - I| of one [n, n] matrix.
double OrthogonalityError(const std::vector<double>& r, int64_t n) {
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double off =
          std::abs(Dot(&r[static_cast<size_t>(i * n)], &r[static_cast<size_t>(j * n)], n) -
                   (i == j ? 1.0 : 0.0));
      if (!std::isfinite(off)) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, off);
    }
  }
  return worst;
}

class Findings {
 public:
  explicit Findings(std::string name) : name_(std::move(name)) {}
  void Error(const std::string& where, const std::string& what) { Add(true, where, what); }
  void Note(const std::string& where, const std::string& what) { Add(false, where, what); }
  void Append(std::vector<ZooFinding> more) {
    list_.insert(list_.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  }
  std::vector<ZooFinding> Take() { return std::move(list_); }

 private:
  void Add(bool error, const std::string& where, const std::string& what) {
    list_.push_back({error, where.empty() ? name_ : name_ + " " + where, what});
  }
  std::string name_;
  std::vector<ZooFinding> list_;
};

double StoredGate(DType stored_as) {
  switch (stored_as) {
    case DType::kF16:
      return kOrthogonalityFloat16Gate;
    case DType::kBF16:
      return kOrthogonalityServedGate;
    default:
      return kOrthogonalityStoredGate;
  }
}

// Index of the first value that is not finite, or -1.
int64_t FirstNonFinite(const std::vector<float>& values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  return found == values.end() ? -1 : found - values.begin();
}

void CheckEigenvalues(const ZooLayer& layer, const std::string& where, Findings& findings) {
  const std::vector<float>& values = layer.eigenvalues;
  if (values.empty()) return;
  if (FirstNonFinite(values) >= 0) return findings.Error(where, "eigenvalues are not finite");
  if (!std::is_sorted(values.begin(), values.end())) {
    findings.Error(where, "eigenvalues are not ascending");
  }
  // A symmetric solver in float64 errs by about D * 2^-53 of the largest eigenvalue.
  constexpr double kRoom = 1e-12;
  const double largest = *std::max_element(values.begin(), values.end());
  const double smallest = *std::min_element(values.begin(), values.end());
  if (smallest < -kRoom * std::max(largest, 0.0)) {
    findings.Error(where, fmt::format("negative eigenvalue {} of a second moment", smallest));
  }
  if (largest <= 0) findings.Error(where, "all eigenvalues are zero: nothing was observed");
}

// Objectives whose rotation comes from data, so that a matrix without any is a fault. The official
// compositions pbr and h_pbr use the target for a permutation only.
bool IsCalibrated(const std::string& objective) {
  static const std::set<std::string> kTargets = {"qqt", "ktk", "sst", "svsv", "vtv", "cov"};
  const size_t end = objective.find('_');
  if (!kTargets.contains(objective.substr(0, end))) return false;
  const std::string composition = end == std::string::npos ? "" : objective.substr(end + 1);
  return composition != "pbr" && composition != "h_pbr";
}

// True when every entry is +-1/sqrt(D): a Hadamard matrix with signs and permutations, which is
// what a calibration on nothing produces (the eigenvectors of a zero matrix are the unit vectors).
// A signed permutation is the same for compositions without a Hadamard factor.
bool CarriesNoCalibration(const ZooLayer& layer) {
  if (layer.dim < 2) return false;
  const double flat = 1 / std::sqrt(static_cast<double>(layer.dim));
  constexpr double kRoom = 1e-6;  // float32 entries of size 1/sqrt(D) round by less than 1e-7
  bool all_flat = true;
  bool all_unit = true;
  for (const float x : layer.rotation) {
    const double size = std::abs(static_cast<double>(x));
    all_flat = all_flat && std::abs(size - flat) < kRoom;
    all_unit = all_unit && (size < kRoom || std::abs(size - 1) < kRoom);
  }
  return all_flat || all_unit;
}

void CheckLayer(const ZooFile& file, int64_t id, const ZooLayer& layer, Findings& findings) {
  const std::string where = fmt::format("layer {}", id);
  CheckEigenvalues(layer, where, findings);
  const int64_t bad = FirstNonFinite(layer.rotation);
  if (bad >= 0) {
    return findings.Error(
        where, fmt::format("rotation[{}, {}] is not finite", bad / layer.dim, bad % layer.dim));
  }
  const ZooOrthogonality measured = MeasureOrthogonality(layer);
  const double gate = StoredGate(layer.stored_as);
  if (!(measured.as_stored <= gate)) {
    findings.Error(where, fmt::format("max |R R^T - I| is {:.3g} as stored in {}, at most {:g} "
                                      "expected",
                                      measured.as_stored, DTypeName(layer.stored_as), gate));
  }
  if (!(measured.as_served <= kOrthogonalityServedGate)) {
    findings.Error(where, fmt::format("max |R R^T - I| is {:.3g} as served in bf16, at most {:g} "
                                      "expected",
                                      measured.as_served, kOrthogonalityServedGate));
  }
  if (IsCalibrated(file.objective) && CarriesNoCalibration(layer)) {
    findings.Error(where, fmt::format("the rotation carries no calibration, although the "
                                      "objective is \"{}\"",
                                      Printable(file.objective)));
  }
}

// Equal matrices in several layers are right for data-free files only.
void CheckRepeats(const ZooFile& file, Findings& findings) {
  if (!IsCalibrated(file.objective)) return;
  std::map<std::vector<float>, int64_t> first;
  for (const auto& [id, layer] : file.layers) {
    const auto [entry, is_new] = first.try_emplace(layer.rotation, id);
    if (!is_new) {
      findings.Error(fmt::format("layer {}", id),
                     fmt::format("same rotation as layer {}", entry->second));
    }
  }
}

std::string IdList(const std::set<int64_t>& ids) { return fmt::format("{}", fmt::join(ids, ", ")); }

std::set<int64_t> Ids(const ZooFile& file) {
  std::set<int64_t> ids;
  for (const auto& [id, layer] : file.layers) ids.insert(id);
  return ids;
}

std::set<int64_t> Without(const std::set<int64_t>& a, const std::set<int64_t>& b) {
  std::set<int64_t> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(rest, rest.end()));
  return rest;
}

void CheckSameLayers(const ZooEntry& entry, Findings& findings) {
  const std::set<int64_t> key = Ids(entry.key);
  const std::set<int64_t> value = Ids(entry.value);
  if (const auto rest = Without(key, value); !rest.empty()) {
    findings.Error("", "only the K file has layers " + IdList(rest));
  }
  if (const auto rest = Without(value, key); !rest.empty()) {
    findings.Error("", "only the V file has layers " + IdList(rest));
  }
  for (const auto& [id, layer] : entry.key.layers) {
    const auto other = entry.value.layers.find(id);
    if (other == entry.value.layers.end()) continue;
    if (layer.heads != other->second.heads && layer.heads > 0 && other->second.heads > 0) {
      findings.Error(fmt::format("layer {}", id),
                     fmt::format("K has {} heads, V has {}", layer.heads, other->second.heads));
    }
  }
}

// Compares one number of the manifest with what the files show.
void CheckNumber(const Value* section, const char* key, int64_t found, const std::string& where,
                 Findings& findings) {
  const Value* stated = section == nullptr ? nullptr : section->Find(key);
  if (stated == nullptr || stated->is_null()) return;
  if (!stated->is_int() || stated->AsInt() != found) {
    findings.Error(
        where, fmt::format("manifest says {} {}, the file has {}", key, stated->ToJson(), found));
  }
}

void CheckManifestSide(const ZooEntry& entry, const ZooFile& file, const char* side,
                       const char* dim_key, Findings& findings) {
  const Value& manifest = *entry.manifest;
  const Value* model = manifest.Find("model");
  const Value* targets = manifest.Find("targets");
  const Value* target = targets == nullptr ? nullptr : targets->Find(side);
  const std::string stated = target != nullptr && target->is_string() ? target->AsString() : "";
  if (!stated.empty() && stated != "none" && SideOfObjective(file.objective) &&
      file.objective != stated && !file.objective.starts_with(stated + "_")) {
    findings.Error(side, fmt::format("manifest says target {}, the file has objective {}", stated,
                                     Printable(file.objective)));
  }
  for (const auto& [id, layer] : file.layers) {
    const std::string where = fmt::format("{} layer {}", side, id);
    CheckNumber(model, dim_key, layer.dim, where, findings);
    if (layer.heads > 0) CheckNumber(model, "kv_heads", layer.heads, where, findings);
  }
  const Value* clip = manifest.Find("clip");
  const Value* table = clip == nullptr ? nullptr : clip->Find(side);
  if (table == nullptr || !table->is_object() || table->AsObject().empty()) return;
  for (const auto& [id, layer] : file.layers) {
    const std::string where = fmt::format("{} layer {}", side, id);
    try {
      const auto ratio = std::string(side) == "key" ? entry.KeyClip(id) : entry.ValueClip(id);
      if (!ratio) findings.Error(where, "the manifest has clip ratios for other layers only");
    } catch (const Error& error) {
      findings.Error(where, error.what());
    }
  }
}

void CheckManifest(const ZooEntry& entry, Findings& findings) {
  CheckManifestSide(entry, entry.key, "key", "k_dim", findings);
  CheckManifestSide(entry, entry.value, "value", "v_dim", findings);
  const Value* layers = entry.manifest->Find("layers");
  if (layers == nullptr || !layers->is_object()) return;
  std::set<std::string> stated, found;
  for (const auto& [id, record] : layers->AsObject()) stated.insert(id);
  for (const auto& [id, layer] : entry.key.layers) found.insert(fmt::format("{}", id));
  if (stated != found) {
    findings.Error("", fmt::format("manifest describes layers {}, the files have {}",
                                   fmt::join(stated, ", "), fmt::join(found, ", ")));
  }
}

}  // namespace

ZooOrthogonality MeasureOrthogonality(const ZooLayer& layer) {
  ZooOrthogonality worst;
  const auto size = static_cast<size_t>(layer.dim * layer.dim);
  std::vector<double> stored(size), served(size);
  for (size_t begin = 0; begin < layer.rotation.size(); begin += size) {
    for (size_t i = 0; i < size; ++i) {
      stored[i] = static_cast<double>(layer.rotation[begin + i]);
      served[i] = static_cast<double>(RoundToBFloat16(layer.rotation[begin + i]));
    }
    worst.as_stored = std::max(worst.as_stored, OrthogonalityError(stored, layer.dim));
    worst.as_served = std::max(worst.as_served, OrthogonalityError(served, layer.dim));
  }
  return worst;
}

std::vector<ZooFinding> ValidateFile(const ZooFile& file, const std::string& name) {
  Findings findings(name);
  if (file.layers.empty()) findings.Error("", "no layers");
  for (const auto& [id, layer] : file.layers) CheckLayer(file, id, layer, findings);
  CheckRepeats(file, findings);
  for (const std::string& path : file.unreadable) {
    findings.Note("",
                  fmt::format("entry \"{}\" is no plain value and was not read", Printable(path)));
  }
  return findings.Take();
}

std::vector<ZooFinding> ValidateEntry(const ZooEntry& entry) {
  Findings findings(entry.folder.string());
  findings.Append(ValidateFile(entry.key, entry.key_path.string()));
  findings.Append(ValidateFile(entry.value, entry.value_path.string()));
  CheckSameLayers(entry, findings);
  if (entry.manifest) {
    CheckManifest(entry, findings);
  } else {
    findings.Note("", "no manifest.json: clip ratios, windows and provenance are unknown");
  }
  // A manifest names which file is which.
  if (!entry.manifest &&
      (!SideOfObjective(entry.key.objective) || !SideOfObjective(entry.value.objective))) {
    findings.Note("",
                  fmt::format("objectives \"{}\" and \"{}\" do not tell K from V",
                              Printable(entry.key.objective), Printable(entry.value.objective)));
  }
  return findings.Take();
}

}  // namespace oscar
