#include "oscar/verify/verify_traces.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/version.h"
#include "oscar/trace/trace.h"
#include "oscar/verify/belonging.h"
#include "oscar/verify/evaluate.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

// Below this many layers with a cache, teacher-forced numbers say little about the whole model.
constexpr size_t kFewLayers = 16;

const char* NameOf(ScaleType type) {
  switch (type) {
    case ScaleType::kF16:
      return "f16";
    case ScaleType::kBF16:
      return "bf16";
    case ScaleType::kF32:
      break;
  }
  return "f32";
}

std::vector<ZooEntry> ReadEntries(const std::vector<std::filesystem::path>& folders) {
  std::vector<ZooEntry> entries;
  std::vector<std::filesystem::path> seen;
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(folder);
    if (std::ranges::find(seen, canonical) != seen.end()) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: given twice", folder.string()));
    }
    seen.push_back(canonical);
    entries.push_back(ReadZooEntry(folder));
  }
  return entries;
}

std::string FileName(const std::filesystem::path& path) { return path.filename().string(); }

Value DescribeTraces(const TraceSet& set) {
  Value::Array list;
  for (const TraceReader& trace : set.traces()) {
    int64_t tokens = 0;
    for (const TraceSequence& sequence : trace.header().sequences) tokens += sequence.length;
    list.push_back(
        Value::Object{{"name", FileName(trace.path())},
                      {"sha256", Sha256File(trace.path().string())},
                      {"sequences", static_cast<int64_t>(trace.header().sequences.size())},
                      {"tokens", tokens}});
  }
  return list;
}

Value DescribeEntries(const std::vector<ZooEntry>& entries, const std::vector<std::string>& tags) {
  Value::Array list;
  for (size_t i = 0; i < entries.size(); ++i) {
    list.push_back(Value::Object{{"tag", tags[i]},
                                 {"key_sha256", Sha256File(entries[i].key_path.string())},
                                 {"value_sha256", Sha256File(entries[i].value_path.string())}});
  }
  return list;
}

Value DescribeModel(const TraceSet& set) {
  const Value& manifest = set.traces().front().header().manifest;
  const auto text = [&](const char* key) {
    const Value* found = manifest.Find(key);
    return found == nullptr ? Value() : *found;
  };
  return Value::Object{{"id", text("model_id")}, {"config_hash", text("config_hash")}};
}

Value DescribeSettings(const TraceVerifyOptions& options, int64_t context_tokens) {
  const MethodSettings& method = options.method;
  Value settings =
      Value::Object{{"sink", method.windows.sink},
                    {"recent", method.windows.recent},
                    {"windows", method.use_windows},
                    {"group_size", method.group_size},
                    {"scale_dtype", NameOf(method.scale_type)},
                    {"clip_mode", method.clip_mode == ClipMode::kSort ? "sort" : "bisect"},
                    {"as_served", method.as_served},
                    {"positions", options.positions},
                    {"seed", options.seed},
                    {"context_tokens", context_tokens}};
  return settings;
}

// Overlap of every entry's calibration text with every trace; refuses it unless allowed.
Value CheckOverlap(const TraceVerifyOptions& options, const std::vector<ZooEntry>& entries,
                   const std::vector<std::string>& tags, const TraceSet& set,
                   std::vector<std::string>& notes) {
  Value::Array list;
  std::string found;
  for (size_t i = 0; i < entries.size(); ++i) {
    const CalibrationText calibration = CalibrationTextOf(entries[i]);
    for (const TraceReader& trace : set.traces()) {
      Overlap overlap = FindOverlap(calibration.header, trace.header());
      overlap.known = overlap.known && (calibration.complete || overlap.any());
      Value::Array identical;
      for (const size_t index : overlap.identical_sequences) {
        identical.push_back(static_cast<int64_t>(index));
      }
      const std::string name = FileName(trace.path());
      if (!overlap.known) {
        notes.push_back(fmt::format(
            "overlap of {} with the calibration text of {} is unknown: token ids are not recorded",
            name, tags[i]));
      } else if (overlap.any()) {
        found += fmt::format(
            "{}{}: {} of {} sequences and {} of {} sampled 24-grams were in the "
            "calibration text of {}",
            found.empty() ? "" : "; ", name, identical.size(), trace.header().sequences.size(),
            overlap.shared_ngrams, overlap.total_ngrams, tags[i]);
      }
      list.push_back(Value::Object{{"trace", name},
                                   {"zoo", tags[i]},
                                   {"known", overlap.known},
                                   {"shared_ngrams", static_cast<int64_t>(overlap.shared_ngrams)},
                                   {"total_ngrams", static_cast<int64_t>(overlap.total_ngrams)},
                                   {"identical_sequences", std::move(identical)}});
    }
  }
  if (found.empty()) return list;
  if (!options.allow_overlap) {
    throw Error(ErrorCode::kMismatch, found,
                "use text that calibration has not seen, or --allow-overlap to measure anyway");
  }
  notes.push_back("the text was seen in calibration: " + found);
  return list;
}

void NoteSequences(const SequenceChoice& choice, const TraceSet& set,
                   std::vector<std::string>& notes) {
  if (choice.too_short > 0) {
    notes.push_back(
        fmt::format("{} sequences were left out: nothing in them is quantised", choice.too_short));
  }
  if (choice.incomplete > 0) {
    notes.push_back(
        fmt::format("{} sequences were left out: they were cut off", choice.incomplete));
  }
  if (choice.sequences.size() == 1) {
    notes.push_back("one sequence only: no standard errors, and no sign of how results vary");
  } else if (choice.sequences.size() < 4) {
    notes.push_back(fmt::format("{} sequences: standard errors are themselves uncertain",
                                choice.sequences.size()));
  }
  const int layer = set.layers().front();
  for (const TraceReader& trace : set.traces()) {
    if (trace.ReadOProj(layer).has_value()) continue;
    notes.push_back(
        fmt::format("projected_output_error is absent for {}: the trace holds no "
                    "output projection",
                    FileName(trace.path())));
  }
  if (set.layers().size() < kFewLayers) {
    notes.push_back(fmt::format(
        "{} layers were measured: per-layer numbers of few attention layers understate what a "
        "whole model loses",
        set.layers().size()));
  }
}

}  // namespace

Verification VerifyTraces(const TraceVerifyOptions& options, const RunContext& context) {
  if (options.traces.empty()) throw Error(ErrorCode::kUsage, "no trace was given");
  Verification result;
  const TraceSet set(options.traces);
  const std::vector<ZooEntry> entries = ReadEntries(options.zoo);
  const std::vector<std::string> tags = UniqueTags(entries);
  std::vector<ModelRotations> rotations;
  for (size_t i = 0; i < entries.size(); ++i) {
    CheckSameModel(entries[i], set, result.notes);
    rotations.push_back(RotationsOf(entries[i], tags[i]));
  }
  const std::vector<KvScheme> schemes =
      SelectSchemes(options.schemes, ShapesOf(set), options.method, rotations, result.notes);
  const SequenceChoice choice =
      ChooseSequences(set, options.method.windows, options.method.use_windows);
  result.inputs["overlap"] = CheckOverlap(options, entries, tags, set, result.notes);
  result.inputs["traces"] = DescribeTraces(set);
  result.inputs["zoo"] = DescribeEntries(entries, tags);
  result.inputs["model"] = DescribeModel(set);
  result.inputs["text"] = Value::Array{};
  NoteSequences(choice, set, result.notes);

  int64_t longest = 0;
  for (const SequenceRef& sequence : choice.sequences) longest = std::max(longest, sequence.length);
  result.settings = DescribeSettings(options, longest);
  result.schemes = EvaluateSchemes(set, choice.sequences, schemes,
                                   {options.positions, options.seed, options.controls}, context);
  return result;
}

Value BuildRecord(const Verification& verification, const std::vector<Gate>& gates) {
  std::vector<std::string> notes = verification.notes;
  std::vector<std::string> skipped;
  const std::vector<GateResult> results = EvaluateGates(gates, verification.schemes, skipped);
  if (!skipped.empty()) {
    notes.push_back(fmt::format("gates that were not applied: {}", fmt::join(skipped, "; ")));
  }
  bool passed = true;
  Value record;
  record["schema"] = "oscar.verify/1";
  record["tool"] = Value::Object{{"version", Version()}, {"git_revision", GitRevision()}};
  record["inputs"] = verification.inputs;
  record["settings"] = verification.settings;
  Value::Array scheme_values;
  for (const SchemeResult& scheme : verification.schemes) scheme_values.push_back(ToValue(scheme));
  record["schemes"] = std::move(scheme_values);
  Value::Array gate_values;
  for (const GateResult& result : results) {
    passed = passed && result.passed;
    gate_values.push_back(ToValue(result));
  }
  if (results.empty()) {
    notes.push_back("no gate could be evaluated, so nothing was verified");
    passed = false;
  }
  record["gates"] = std::move(gate_values);
  record["verdict"] = passed ? "pass" : "fail";
  record["notes"] = Value::Array(notes.begin(), notes.end());
  record["volatile"] = Value::Object{};
  return record;
}

bool Passed(const Value& record) { return record.At("verdict") == Value("pass"); }

}  // namespace oscar
