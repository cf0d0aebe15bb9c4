#include "oscar/verify/verify_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/printable.h"
#include "oscar/core/version.h"
#include "oscar/trace/trace.h"
#include "oscar/verify/belonging.h"
#include "oscar/verify/evaluate.h"
#include "oscar/verify/evaluate_kernels.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

// Below this many layers with a cache, teacher-forced numbers say little about the whole model.
constexpr size_t kFewLayers = 16;

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

Value DescribeModel(const TraceSet& set) {
  const Value& manifest = set.traces().front().header().manifest;
  const auto text = [&](const char* key) {
    const Value* found = manifest.Find(key);
    return found == nullptr ? Value() : *found;
  };
  return Value::Object{{"id", text("model_id")}, {"config_hash", text("config_hash")}};
}

void NoteSequences(const SequenceChoice& choice, const TraceSet& set,
                   std::vector<std::string>& notes) {
  const auto left_out = [&](int64_t count, const char* why) {
    if (count == 0) return;
    notes.push_back(fmt::format("{} left out: {}",
                                Counted(count, "sequence") + (count == 1 ? " was" : " were"), why));
  };
  left_out(choice.too_short, "too short for anything to be quantised");
  left_out(choice.incomplete, "cut off by a token budget");
  if (!choice.exact_layers.empty()) notes.push_back(ExactLayersNote(choice.exact_layers));
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
  const size_t layers = set.layers().size() - choice.exact_layers.size();
  if (layers < kFewLayers) {
    notes.push_back(
        fmt::format("{} measured: per-layer numbers of few attention layers understate what a "
                    "whole model loses",
                    Counted(layers, "layer") + (layers == 1 ? " was" : " were")));
  }
}

// "cuda" of "cuda:1": which of several equal devices ran is no setting.
std::string DeviceKind(const std::string& device) { return device.substr(0, device.find(':')); }

// What a reader should know of numbers that kernels computed.
void NoteKernels(const TraceVerifyOptions& options, bool timed, std::vector<std::string>& notes) {
  notes.push_back(
      "output_error, projected_output_error and lse_error come from the decode kernel; key, value "
      "and logit errors and attention KL from the cache that the write kernel filled: a decode "
      "kernel gives no probabilities");
  if (options.controls) notes.push_back("no matched noise: kernels write what they quantise only");
  if (timed) {
    notes.push_back(
        "times are of this trace's batch, whose requests share pages: most of what is read comes "
        "from the L2 cache; oscar-verify bench measures caches in memory");
  }
}

void EvaluateWithKernels(const TraceVerifyOptions& options, const TraceSet& set,
                         const SequenceChoice& choice, std::vector<KvScheme> schemes,
                         KernelBackend& backend, const RunContext& context, Verification& result) {
  schemes = KernelSchemes(std::move(schemes), set, result.notes);
  KernelEvaluation evaluation =
      EvaluateOnKernels(set, choice.sequences, schemes,
                        {options.positions, options.seed, options.controls}, backend, context);
  NoteKernels(options, !evaluation.times.empty(), result.notes);
  result.schemes = std::move(evaluation.results);
  result.times["device"] = std::move(evaluation.device);
  if (!evaluation.times.empty()) result.times["kernels"] = std::move(evaluation.times);
}

}  // namespace

std::string ExactLayersNote(const std::vector<int>& layers) {
  return fmt::format(
      "{} {} left out of the measurement: nothing in {} is quantised, because the sliding window "
      "lies within the recent tokens",
      layers.size() == 1 ? "layer" : "layers", fmt::join(layers, ", "),
      layers.size() == 1 ? "it" : "them");
}

Value DescribeEntries(const EntrySet& set) {
  Value::Array list;
  for (size_t i = 0; i < set.entries.size(); ++i) {
    list.push_back(Value::Object{{"tag", set.tags[i]},
                                 {"key_sha256", Sha256File(set.entries[i].key_path.string())},
                                 {"value_sha256", Sha256File(set.entries[i].value_path.string())}});
  }
  return list;
}

Value DescribeSettings(const TraceVerifyOptions& options, int64_t context_tokens) {
  const MethodSettings& method = options.method;
  Value settings =
      Value::Object{{"sink", method.windows.sink},
                    {"recent", method.windows.recent},
                    {"flush", method.windows.flush},
                    {"windows", method.use_windows},
                    {"group_size", method.group_size},
                    {"scale_dtype", ScaleTypeName(method.scale_type)},
                    {"clip_mode", method.clip_mode == ClipMode::kSort ? "sort" : "bisect"},
                    {"as_served", method.as_served || NamesKernels(options.device)},
                    {"device", NamesKernels(options.device) ? DeviceKind(options.device) : "cpu"},
                    {"positions", options.positions},
                    {"seed", options.seed},
                    {"context_tokens", context_tokens}};
  return settings;
}

Verification VerifyTraces(const TraceVerifyOptions& options, const EntrySet& entries,
                          const RunContext& context) {
  if (options.traces.empty()) throw Error(ErrorCode::kUsage, "no trace was given");
  Verification result;
  std::unique_ptr<KernelBackend> backend;  // before hours of reading
  if (NamesKernels(options.device)) backend = MakeKernelBackend(options.device, context.threads);
  const TraceSet set(options.traces);
  const std::map<int, LayerShape> shapes = ShapesOf(set);
  for (const ZooEntry& entry : entries.entries) {
    CheckSameModel(entry, set.traces().front().header().manifest, shapes, "the traces",
                   result.notes);
  }
  RequireSchemesFit(options.schemes, shapes, options.traces.front().string());
  std::vector<KvScheme> schemes =
      SelectSchemes(options.schemes, shapes, options.method, entries.rotations, result.notes);
  const SequenceChoice choice =
      ChooseSequences(set, options.method.windows, options.method.use_windows);
  Value::Array overlap;
  for (const TraceReader& trace : set.traces()) {
    Value::Array more = CheckOverlap(entries, trace.header(), FileName(trace.path()),
                                     options.allow_overlap, result.notes);
    std::ranges::move(more, std::back_inserter(overlap));
  }
  result.inputs["overlap"] = std::move(overlap);
  result.inputs["traces"] = DescribeTraces(set);
  result.inputs["zoo"] = DescribeEntries(entries);
  result.inputs["model"] = DescribeModel(set);
  result.inputs["text"] = Value::Array{};
  NoteSequences(choice, set, result.notes);

  int64_t longest = 0;
  for (const SequenceRef& sequence : choice.sequences) longest = std::max(longest, sequence.length);
  result.settings = DescribeSettings(options, longest);
  if (backend != nullptr) {
    EvaluateWithKernels(options, set, choice, std::move(schemes), *backend, context, result);
    return result;
  }
  result.schemes = EvaluateSchemes(set, choice.sequences, schemes,
                                   {options.positions, options.seed, options.controls}, context);
  return result;
}

namespace {

// A note for each entry that was given and of which no scheme was measured.
void NoteUnmeasured(const Verification& verification, std::vector<std::string>& notes) {
  const Value* const entries = verification.inputs.Find("zoo");
  if (entries == nullptr) return;
  for (const Value& entry : entries->AsArray()) {
    const std::string tag = entry.At("tag").AsString();
    const bool measured =
        std::ranges::any_of(verification.schemes, [&](const SchemeResult& scheme) {
          return !scheme.control && scheme.name.ends_with(":" + tag);
        });
    if (measured) continue;
    notes.push_back(
        fmt::format("{} was given, but no scheme of it was measured: nothing was verified", tag));
  }
}

}  // namespace

Value BuildRecord(const Verification& verification, const std::vector<Gate>& gates) {
  std::vector<std::string> notes = verification.notes;
  std::vector<GateResult> skipped;
  const std::vector<GateResult> results = EvaluateGates(gates, verification.schemes, skipped);
  NoteUnmeasured(verification, notes);
  bool passed = notes.size() == verification.notes.size();
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
  Value::Array skipped_values;
  for (const GateResult& result : skipped) skipped_values.push_back(SkippedValue(result));
  record["skipped_gates"] = std::move(skipped_values);
  record["verdict"] = passed ? "pass" : "fail";
  record["notes"] = Value::Array(notes.begin(), notes.end());
  record["volatile"] = verification.times;
  return record;
}

bool Passed(const Value& record) { return record.At("verdict") == Value("pass"); }

}  // namespace oscar
