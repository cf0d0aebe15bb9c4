#include "oscar/verify/verify_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/printable.h"
#include "oscar/model/backend.h"
#include "oscar/quant/windows.h"
#include "oscar/text/load_text.h"
#include "oscar/verify/belonging.h"
#include "oscar/verify/end_to_end.h"
#include "oscar/verify/verify.h"
#include "oscar/weights/fingerprint.h"

namespace oscar {
namespace {

std::map<int, LayerShape> ShapesOf(const ModelConfig& config) {
  std::map<int, LayerShape> shapes;
  for (int layer = 0; layer < config.layers; ++layer) shapes[layer] = config.ShapeOfLayer(layer);
  return shapes;
}

// The text as the header of a trace, for the overlap rule.
TraceHeader HeaderOf(const std::vector<std::vector<int32_t>>& sequences) {
  TraceHeader header;
  for (const std::vector<int32_t>& ids : sequences) {
    TraceSequence sequence;
    sequence.length = static_cast<int64_t>(ids.size());
    sequence.sha256 = Sha256Hex(ids.data(), ids.size() * sizeof(int32_t));
    header.sequences.push_back(sequence);
  }
  header.ngram_hashes = DistinctiveNgrams(sequences);
  return header;
}

std::vector<KvScheme> Schemes(const ModelVerifyOptions& options, const TraceVerifyOptions& shared,
                              const std::map<int, LayerShape>& shapes,
                              const std::vector<ModelRotations>& rotations,
                              std::vector<std::string>& notes) {
  std::vector<std::string> names = options.schemes;
  if (names == std::vector<std::string>{"default"}) {
    names = {"bf16", "naive", "hadamard", "clip-only"};
    if (!rotations.empty()) names.emplace_back("oscar");
  }
  std::vector<KvScheme> schemes;
  for (KvScheme& scheme : SelectSchemes(names, shapes, shared.method, rotations, notes)) {
    // Every scheme is one more run of the model, so only the entries under test get a control.
    const bool control = shared.controls && scheme.name.starts_with("oscar");
    schemes.push_back(scheme);
    if (control) schemes.push_back(MatchedNoiseControl(std::move(scheme), shared.seed));
  }
  return schemes;
}

// The result of that name, appended when it is not there yet.
SchemeResult& ResultOf(const KvScheme& scheme, double bits, Verification& verification) {
  const auto found = std::ranges::find(verification.schemes, scheme.name, &SchemeResult::name);
  if (found != verification.schemes.end()) return *found;
  SchemeResult& added = verification.schemes.emplace_back();
  added.name = scheme.name;
  added.label = scheme.label;
  added.control = scheme.matched_noise;
  added.bits_per_element = bits;
  return added;
}

void AddMetrics(const EndToEndResult& measured, SchemeResult& result) {
  result.metrics["next_token_kl"] = MetricValue::Of(measured.next_token_kl);
  result.metrics["top1_agreement"] = MetricValue::Of(measured.top1_agreement);
  result.metrics["perplexity_ratio"] = MetricValue::Of(measured.perplexity_ratio);
  result.metrics["hidden_error"] = MetricValue::Of(measured.hidden_error.back());
  for (size_t layer = 0; layer < measured.hidden_error.size(); ++layer) {
    const int id = static_cast<int>(layer);
    auto found = std::ranges::find(result.layers, id, &LayerMetrics::layer);
    if (found == result.layers.end()) {
      result.layers.push_back({id, {}});
      found = std::prev(result.layers.end());
    }
    found->metrics["hidden_error"] = MetricValue::Of(measured.hidden_error[layer]);
  }
}

void NoteShortSequences(const MethodSettings& method,
                        const std::vector<std::vector<int32_t>>& sequences,
                        std::vector<std::string>& notes) {
  if (!method.use_windows) return;
  // One more position is needed than for a trace: the last one predicts no token of the text.
  const int64_t count = std::ranges::count_if(sequences, [&](const auto& sequence) {
    return static_cast<int64_t>(sequence.size()) <= method.windows.ShortestUseful();
  });
  if (count == 0) return;
  notes.push_back(fmt::format("end to end: {} left out: too short for anything to be quantised",
                              Counted(count, "sequence") + (count == 1 ? " was" : " were")));
}

// Not an error: the other layers quantise, and a model is measured as a whole.
void NoteExactLayers(const std::map<int, LayerShape>& shapes, const MethodSettings& method,
                     const std::vector<std::vector<int32_t>>& sequences,
                     std::vector<std::string>& notes) {
  if (!method.use_windows) return;
  const std::vector<int> exact = LayersKeptExact(shapes, method.windows, LongestOf(sequences));
  if (exact.empty()) return;
  notes.push_back(
      fmt::format("end to end: nothing in {} {} is quantised, because the sliding window lies "
                  "within the recent tokens",
                  exact.size() == 1 ? "layer" : "layers", fmt::join(exact, ", ")));
}

void NoteFewSequences(const std::vector<double>& per_sequence, std::vector<std::string>& notes) {
  if (per_sequence.size() >= 4) return;
  notes.push_back(fmt::format("end to end: {}: {}", Counted(per_sequence.size(), "sequence"),
                              per_sequence.size() == 1
                                  ? "no standard errors, and no sign of how results vary"
                                  : "standard errors are themselves uncertain"));
}

Value DescribeText(const std::vector<std::filesystem::path>& text) {
  Value::Array files;
  for (const std::filesystem::path& file : text) {
    files.push_back(
        Value::Object{{"name", file.filename().string()}, {"sha256", Sha256File(file.string())}});
  }
  return files;
}

}  // namespace

struct ModelVerification::Impl {
  std::unique_ptr<ModelWeights> model;
  std::map<int, LayerShape> shapes;
  LoadedText text;
  std::vector<KvScheme> schemes;
  std::string device;
  Value inputs;  // model, text, overlap and zoo of the report
  Value settings;
  std::vector<std::string> notes;

  Impl(const ModelVerifyOptions& options, const TraceVerifyOptions& shared,
       const EntrySet& entries);
};

ModelVerification::Impl::Impl(const ModelVerifyOptions& options, const TraceVerifyOptions& shared,
                              const EntrySet& entries)
    : model(OpenModel(options.model)), shapes(ShapesOf(model->config())), device(options.device) {
  CheckDevice(device);
  Value identity;
  identity["model_id"] = model->model_id();
  identity["config_hash"] = model->config_hash();
  identity["weights_fingerprint"] = WeightsFingerprint(*model);
  for (const ZooEntry& entry : entries.entries) {
    CheckSameModel(entry, identity, shapes, "the model", notes);
  }
  text = LoadText({.files = options.text,
                   .chat_template = options.chat_template,
                   .seed = shared.seed,
                   .tokens = options.tokens,
                   .window = options.window},
                  *model);
  const std::vector<std::vector<int32_t>>& sequences = text.packed.sequences;
  if (text.packed.tokens_available < options.tokens) {
    notes.push_back(fmt::format("the text has {} tokens, {} were asked for",
                                text.packed.tokens_available, options.tokens));
  }
  inputs["overlap"] =
      CheckOverlap(entries, HeaderOf(sequences), "the text", shared.allow_overlap, notes);
  inputs["model"] = Value::Object{{"id", model->model_id()}, {"config_hash", model->config_hash()}};
  inputs["text"] = DescribeText(options.text);
  inputs["zoo"] = DescribeEntries(entries);
  settings = DescribeSettings(shared, text.window);
  RequireSchemesFit(options.schemes, shapes, options.model.string());
  NoteShortSequences(shared.method, sequences, notes);
  NoteExactLayers(shapes, shared.method, sequences, notes);
  schemes = Schemes(options, shared, shapes, entries.rotations, notes);
}

ModelVerification::ModelVerification(const ModelVerifyOptions& options,
                                     const TraceVerifyOptions& shared, const EntrySet& entries)
    : impl_(std::make_unique<const Impl>(options, shared, entries)) {}
ModelVerification::~ModelVerification() = default;

void ModelVerification::Run(const RunContext& context, Verification& verification) const {
  const Impl& m = *impl_;
  const std::vector<EndToEndResult> results =
      RunEndToEnd(*m.model, m.text.packed.sequences, m.schemes, m.device, context);
  std::ranges::copy(m.notes, std::back_inserter(verification.notes));
  if (!results.empty()) NoteFewSequences(results.front().next_token_kl, verification.notes);
  Value::Array& overlap = verification.inputs["overlap"].MutableArray();
  std::ranges::copy(m.inputs.At("overlap").AsArray(), std::back_inserter(overlap));
  for (const char* key : {"model", "text", "zoo"}) verification.inputs[key] = m.inputs.At(key);
  if (verification.inputs.Find("traces") == nullptr) {
    verification.inputs["traces"] = Value::Array{};
  }
  if (verification.settings.Find("sink") == nullptr) verification.settings = m.settings;
  // One context for every row of the table: that of the traces where there are any.
  const int64_t context_tokens = verification.settings.At("context_tokens").AsInt();
  for (size_t i = 0; i < m.schemes.size(); ++i) {
    const double bits = MeanBitsPerElement(m.schemes[i], m.shapes, context_tokens);
    AddMetrics(results[i], ResultOf(m.schemes[i], bits, verification));
  }
}

std::vector<std::pair<std::string, std::string>> VerifyLibraries() {
  return {{"LibTorch", LibTorchVersion()}};
}

}  // namespace oscar
