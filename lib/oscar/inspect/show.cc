// oscar-zoo show: what a rotation file or a zoo folder holds.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "oscar/core/hash.h"
#include "oscar/core/printable.h"
#include "oscar/inspect/commands.h"
#include "oscar/inspect/manifest_diff.h"
#include "oscar/inspect/objective.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// (sum x)^2 / sum x^2: how many directions carry the second moment.
double EffectiveRank(const std::vector<float>& eigenvalues) {
  double sum = 0, squares = 0;
  for (const float x : eigenvalues) {
    sum += static_cast<double>(x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  return squares > 0 ? sum * sum / squares : 0;
}

Value DescribeLayer(int64_t id, const ZooLayer& layer) {
  const ZooOrthogonality measured = MeasureOrthogonality(layer);
  Value record;
  record["layer"] = id;
  record["heads"] = layer.heads;
  record["dim"] = layer.dim;
  record["stored_as"] = DTypeName(layer.stored_as);
  record["orthogonality_as_stored"] = measured.as_stored;
  record["orthogonality_as_served"] = measured.as_served;
  if (!layer.eigenvalues.empty()) {
    const auto [low, high] =
        std::minmax_element(layer.eigenvalues.begin(), layer.eigenvalues.end());
    record["eigenvalue_min"] = static_cast<double>(*low);
    record["eigenvalue_max"] = static_cast<double>(*high);
    record["effective_rank"] = EffectiveRank(layer.eigenvalues);
  }
  return record;
}

Value DescribeFile(const ZooFile& file, const fs::path& path, ZooSide side) {
  Value record;
  record["path"] = path.string();
  record["bytes"] = static_cast<int64_t>(fs::file_size(path));
  record["sha256"] = Sha256File(path.string());
  record["format_version"] = file.format_version;
  record["objective"] = file.objective;
  record["source_grouping"] = file.source_grouping;
  const Objective objective = ParseObjective(file.objective, side);
  record["target"] = objective.target ? Value(TargetName(*objective.target)) : Value();
  record["composition"] = objective.composition.empty() ? Value() : Value(objective.composition);
  record["extra"] = file.extra;
  Value::Array unreadable(file.unreadable.begin(), file.unreadable.end());
  record["unreadable"] = std::move(unreadable);
  Value::Array layers;
  for (const auto& [id, layer] : file.layers) layers.push_back(DescribeLayer(id, layer));
  record["layers"] = std::move(layers);
  return record;
}

std::string Cell(const Value& record, const char* key) {
  const Value* value = record.Find(key);
  if (value == nullptr || value->is_null()) return "-";
  return value->is_int() ? fmt::format("{}", value->AsInt())
                         : fmt::format("{:.3g}", value->AsDouble());
}

std::string Word(const Value& value) {
  if (value.is_null()) return "unknown";
  return Printable(value.is_string() ? value.AsString() : value.ToJson());
}

std::string FileText(const Value& record) {
  const Value::Array& layers = record.At("layers").AsArray();
  std::string text = fmt::format(
      "{}\n  {} bytes, sha256 {}\n  format_version {}, objective {}, source_grouping {}\n"
      "  target {}, composition {}, {}\n",
      record.At("path").AsString(), record.At("bytes").AsInt(), record.At("sha256").AsString(),
      Word(record.At("format_version")), Word(record.At("objective")),
      Word(record.At("source_grouping")), Word(record.At("target")), Word(record.At("composition")),
      Counted(layers.size(), "layer"));
  if (record.At("extra").is_object()) {
    for (const auto& [key, value] : record.At("extra").AsObject()) {
      text += fmt::format("  {}: {}\n", Printable(key), Printable(value.ToJson()));
    }
  }
  for (const Value& name : record.At("unreadable").AsArray()) {
    text += fmt::format("  {}: not a plain value\n", Printable(name.AsString()));
  }
  text += fmt::format("  {:>5}  {:>5}  {:>4}  {:>9}  {:>9}  {:>10}  {:>10}  {:>9}\n", "layer",
                      "heads", "dim", "stored", "served", "eigen min", "eigen max", "eff. rank");
  for (const Value& layer : layers) {
    text += fmt::format("  {:>5}  {:>5}  {:>4}  {:>9}  {:>9}  {:>10}  {:>10}  {:>9}\n",
                        Cell(layer, "layer"),
                        layer.At("heads").AsInt() == 0 ? "all" : Cell(layer, "heads"),
                        Cell(layer, "dim"), Cell(layer, "orthogonality_as_stored"),
                        Cell(layer, "orthogonality_as_served"), Cell(layer, "eigenvalue_min"),
                        Cell(layer, "eigenvalue_max"), Cell(layer, "effective_rank"));
  }
  return text;
}

// The parts of a manifest that fit a terminal: everything but per-layer tables and volatile data.
std::string ManifestText(const Value& manifest) {
  std::string text = "  manifest\n";
  for (const auto& [key, value] : manifest.AsObject()) {
    if (key == "layers" || key == "files" || key == "volatile") continue;
    if (!value.is_object()) {
      text += fmt::format("    {}: {}\n", Printable(key), Brief(value));
      continue;
    }
    for (const auto& [inner, content] : value.AsObject()) {
      text += fmt::format("    {}.{}: {}\n", Printable(key), Printable(inner), Brief(content));
    }
  }
  return text;
}

}  // namespace

InspectReport ShowZoo(const std::vector<fs::path>& inputs) {
  InspectReport report;
  report.record = NewRecord("show");
  Value::Array records;
  for (const fs::path& input : inputs) {
    Value record;
    record["path"] = input.string();
    if (fs::is_directory(input)) {
      const ZooEntry entry = ReadZooEntry(input);
      record["kind"] = "entry";
      record["key"] = DescribeFile(entry.key, entry.key_path, ZooSide::kKey);
      record["value"] = DescribeFile(entry.value, entry.value_path, ZooSide::kValue);
      record["manifest"] = entry.manifest ? *entry.manifest : Value();
      report.text += fmt::format("entry {}\n", input.string());
      if (entry.manifest) report.text += ManifestText(*entry.manifest);
      report.text += FileText(record["key"]) + FileText(record["value"]);
    } else {
      const ZooFile file = ReadZooFile(input);
      record["kind"] = "file";
      record["file"] = DescribeFile(file, input, GuessSide(file, input));
      report.text += FileText(record["file"]);
    }
    records.push_back(std::move(record));
  }
  report.record["inputs"] = std::move(records);
  return report;
}

}  // namespace oscar
