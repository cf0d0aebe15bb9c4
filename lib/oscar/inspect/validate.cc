// oscar-zoo validate: findings about files and folders, and provenance against traces.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "oscar/core/error.h"
#include "oscar/inspect/commands.h"
#include "oscar/inspect/objective.h"
#include "oscar/inspect/provenance.h"
#include "oscar/inspect/ranges.h"
#include "oscar/trace/trace.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

struct Checked {
  std::vector<ZooFinding> findings;
  std::vector<std::pair<std::string, ProvenanceResult>> provenance;  // side name, result

  bool passed() const {
    return std::none_of(findings.begin(), findings.end(),
                        [](const ZooFinding& finding) { return finding.error; });
  }
};

// A file whose content is bad is a finding; one that cannot be read at all is the caller's error.
bool IsVerdict(ErrorCode code) {
  return code == ErrorCode::kFormat || code == ErrorCode::kUnsupported ||
         code == ErrorCode::kMismatch || code == ErrorCode::kNumeric || code == ErrorCode::kData;
}

// Results of one reason, to become one finding.
struct ReasonGroup {
  std::vector<int64_t> layers;
  double off_diagonal = 0;  // largest
  double tolerance = 0;
  double alignment_low = 1, alignment_high = 0;
};

// Nothing was compared where shapes differ, and numbers would look like measurements.
std::string Measured(const ReasonGroup& group) {
  if (group.tolerance == 0) return "";
  return fmt::format(
      " (off-diagonal up to {:.3g}, at most {:.3g} expected; alignment {:.3f} to {:.3f})",
      group.off_diagonal, group.tolerance, group.alignment_low, group.alignment_high);
}

void AddProvenance(const ZooFile& file, ZooSide side, const std::string& name,
                   const TraceSet& traces, const RunContext& context, Checked& checked) {
  const char* side_name = side == ZooSide::kKey ? "key" : "value";
  std::map<std::string, ReasonGroup> other, unknown;
  for (const ProvenanceResult& result : CheckProvenance(file, side, traces, context)) {
    checked.provenance.emplace_back(side_name, result);
    if (result.verdict == ProvenanceVerdict::kFits) continue;
    ReasonGroup& group =
        (result.verdict == ProvenanceVerdict::kOther ? other : unknown)[result.reason];
    group.layers.push_back(result.layer);
    group.off_diagonal = std::max(group.off_diagonal, result.off_diagonal);
    group.tolerance = result.tolerance;
    group.alignment_low = std::min(group.alignment_low, result.alignment);
    group.alignment_high = std::max(group.alignment_high, result.alignment);
  }
  for (const auto& [reason, group] : other) {
    checked.findings.push_back({true, name,
                                fmt::format("layers {} do not come from the traces: {}{}",
                                            RangesOf(group.layers), reason, Measured(group))});
  }
  for (const auto& [reason, group] : unknown) {
    checked.findings.push_back({false, name,
                                fmt::format("provenance of layers {} not recoverable: {}",
                                            RangesOf(group.layers), reason)});
  }
}

// Model identity as both sides state it; nothing is said where one of them is silent.
void CompareModel(const ZooEntry& entry, const TraceSet& traces, Checked& checked) {
  const Value* model = entry.manifest ? entry.manifest->Find("model") : nullptr;
  if (model == nullptr || traces.traces().empty()) return;
  const Value& trace = traces.traces().front().header().manifest;
  for (const auto& [ours, theirs] :
       {std::pair{"id", "model_id"}, std::pair{"config_hash", "config_hash"}}) {
    const Value* a = model->Find(ours);
    const Value* b = trace.Find(theirs);
    const bool stated = a != nullptr && b != nullptr && *a != Value("") && *b != Value("") &&
                        !a->is_null() && !b->is_null();
    if (stated && *a != *b) {
      checked.findings.push_back({true, entry.folder.string(),
                                  fmt::format("manifest says model {} {}, the traces say {}", ours,
                                              a->ToJson(), b->ToJson())});
    }
  }
}

Checked CheckInput(const fs::path& input, const std::optional<TraceSet>& traces,
                   const RunContext& context) {
  Checked checked;
  try {
    if (fs::is_directory(input)) {
      const ZooEntry entry = ReadZooEntry(input);
      checked.findings = ValidateEntry(entry);
      if (traces) {
        CompareModel(entry, *traces, checked);
        AddProvenance(entry.key, ZooSide::kKey, entry.key_path.string(), *traces, context, checked);
        AddProvenance(entry.value, ZooSide::kValue, entry.value_path.string(), *traces, context,
                      checked);
      }
    } else {
      const ZooFile file = ReadZooFile(input);
      checked.findings = ValidateFile(file, input.string());
      if (traces) {
        AddProvenance(file, GuessSide(file, input), input.string(), *traces, context, checked);
      }
    }
  } catch (const Error& error) {
    if (!IsVerdict(error.code())) throw;
    std::string what = error.what();
    if (!error.hint().empty()) what += "; " + error.hint();
    checked.findings.push_back({true, std::string(ErrorCodeName(error.code())), what});
  }
  return checked;
}

Value RecordOf(const fs::path& input, const Checked& checked, bool with_provenance) {
  Value record;
  record["path"] = input.string();
  record["passed"] = checked.passed();
  Value::Array findings;
  for (const ZooFinding& finding : checked.findings) {
    findings.push_back(Value::Object{{"severity", finding.error ? "error" : "note"},
                                     {"where", finding.where},
                                     {"what", finding.what}});
  }
  record["findings"] = std::move(findings);
  if (!with_provenance) return record;
  Value::Array provenance;
  for (const auto& [side, result] : checked.provenance) {
    Value item;
    item["side"] = side;
    item["layer"] = result.layer;
    item["head"] = result.head < 0 ? Value() : Value(result.head);
    item["verdict"] = ProvenanceName(result.verdict);
    item["reason"] = result.reason;
    const bool measured = result.tolerance > 0;
    item["off_diagonal"] = measured ? Value(result.off_diagonal) : Value();
    item["tolerance"] = measured ? Value(result.tolerance) : Value();
    item["alignment"] = measured ? Value(result.alignment) : Value();
    item["eigenvalue_error"] =
        result.eigenvalue_error < 0 ? Value() : Value(result.eigenvalue_error);
    provenance.push_back(std::move(item));
  }
  record["provenance"] = std::move(provenance);
  return record;
}

std::string ProvenanceText(const Checked& checked) {
  std::map<std::string, std::map<std::string, int>> counts;
  std::map<std::string, double> worst;
  for (const auto& [side, result] : checked.provenance) {
    ++counts[side][std::string(ProvenanceName(result.verdict))];
    if (result.tolerance > 0) worst[side] = std::max(worst[side], result.off_diagonal);
  }
  std::string text;
  for (const auto& [side, verdicts] : counts) {
    std::string parts;
    for (const auto& [verdict, count] : verdicts) {
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, verdict);
    }
    const auto largest = worst.find(side);
    text += fmt::format("  provenance of {}: {}{}\n", side, parts,
                        largest == worst.end()
                            ? ""
                            : fmt::format("; largest off-diagonal {:.3g}", largest->second));
  }
  return text;
}

}  // namespace

InspectReport ValidateZoo(const std::vector<fs::path>& inputs, const std::vector<fs::path>& traces,
                          const RunContext& context) {
  std::optional<TraceSet> set;
  if (!traces.empty()) set.emplace(traces);
  InspectReport report;
  report.record = NewRecord("validate");
  Value::Array records;
  for (const fs::path& input : inputs) {
    const Checked checked = CheckInput(input, set, context);
    report.passed = report.passed && checked.passed();
    report.text +=
        fmt::format("{}: {}\n", input.string(), checked.passed() ? "valid" : "NOT valid");
    for (const ZooFinding& finding : checked.findings) {
      report.text += fmt::format("  {}: {}: {}\n", finding.error ? "error" : "note", finding.where,
                                 finding.what);
    }
    report.text += ProvenanceText(checked);
    records.push_back(RecordOf(input, checked, set.has_value()));
  }
  report.record["inputs"] = std::move(records);
  report.record["passed"] = report.passed;
  return report;
}

}  // namespace oscar
