// A model's run: every sequence through one layer, the layer's result to disk, the next layer.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "oscar/core/error.h"
#include "oscar/dump/estimate.h"
#include "oscar/dump/layer_list.h"
#include "oscar/dump/manifest.h"
#include "oscar/dump/runs.h"
#include "oscar/dump/sequences.h"
#include "oscar/dump/tokens.h"
#include "oscar/model/runner.h"
#include "oscar/weights/model_weights.h"

namespace oscar {
namespace {

TraceHeader MakeHeader(const DumpOptions& options, const RunContext& context,
                       const ModelWeights& model, const TokenData& tokens) {
  TraceHeader header;
  header.manifest = tokens.manifest;
  for (size_t i = 0; i < tokens.sequences.size(); ++i) {
    const std::vector<int32_t>& ids = tokens.sequences[i];
    TraceSequence s;
    s.length = static_cast<int64_t>(ids.size());
    s.complete = tokens.complete[i];
    s.sha256 = HashOfIds(ids);
    header.sequences.push_back(s);
  }
  header.ngram_hashes = DistinctiveNgrams(tokens.sequences);
  ApplyTokenBudget(header.sequences, 0);
  ApplyRowBudget(header.sequences, options.rows_tokens);
  std::vector<int> all(static_cast<size_t>(model.config().layers));
  std::iota(all.begin(), all.end(), 0);
  header.layers = SelectLayers(options.layers, all);
  DescribeModel(model, header.manifest);
  if (!options.model_id.empty()) header.manifest["model_id"] = options.model_id;
  DescribeRun(options, context, header);
  header.manifest["device"] = options.device;
  header.manifest["dtype"] = "f32";
  return header;
}

// A state behind layer files that are not there would leave holes in the trace.
void RequireLayersBefore(const TraceWriter& writer, const TraceHeader& header, int64_t next) {
  for (const int layer : header.layers) {
    if (layer >= next || writer.HasLayer(layer)) continue;
    throw Error(ErrorCode::kFormat,
                fmt::format("{}: layer_{}.h5 is missing though the run was already at layer {}",
                            writer.part_folder().string(), layer, next),
                "start over with --force");
  }
}

// Writes a finished layer and the state behind it while the next layer runs. One job at a time, and
// the next layer's result waits for it: a kill costs at most the time of one layer and one save, as
// if they took turns. The progress bar moves when a layer is safe on disk.
class LayerSaver {
 public:
  LayerSaver(TraceWriter& writer, Progress& progress) : writer_(writer), progress_(progress) {}
  ~LayerSaver() {
    if (job_.valid()) job_.wait();
  }

  // `capture` may be empty: a layer that is not wanted. `state` may be null: nothing follows.
  void Save(std::optional<LayerCapture> capture, std::shared_ptr<const RunnerState> state) {
    Join();
    job_ = std::async(std::launch::async, [this, capture = std::move(capture), state] {
      // A layer that was on disk before the state behind it ran again for the hidden states only.
      if (capture && !writer_.HasLayer(capture->layer)) writer_.WriteLayer(*capture);
      if (state) {
        writer_.WriteState([&](const std::filesystem::path& file) { state->Save(file); });
      }
    });
  }

  // Waits for the job and throws what it threw.
  void Join() {
    if (!job_.valid()) return;
    job_.get();
    progress_.Advance(1);
  }

 private:
  TraceWriter& writer_;
  Progress& progress_;
  std::future<void> job_;
};

void RunLayers(const RunContext& context, const TraceHeader& header, const CaptureSpec& spec,
               ModelRunner& runner, TraceWriter& writer) {
  if (const auto state = writer.state_file()) {
    runner.RestoreState(*state);
    RequireLayersBefore(writer, header, runner.next_layer());
    context.progress->Info(fmt::format("continuing at layer {}", runner.next_layer()));
  }
  const int64_t end = header.layers.back() + 1;
  context.progress->Begin("dump", end, "layers");
  context.progress->Advance(runner.next_layer());
  LayerSaver saver(writer, *context.progress);
  while (runner.next_layer() < end) {
    const int layer = static_cast<int>(runner.next_layer());
    std::optional<LayerCapture> capture;
    if (std::binary_search(header.layers.begin(), header.layers.end(), layer)) capture.emplace();
    runner.RunLayer(capture ? &spec : nullptr, capture ? &*capture : nullptr);
    saver.Save(std::move(capture), runner.next_layer() < end ? runner.State() : nullptr);
  }
  saver.Join();
  context.progress->End();
}

}  // namespace

DumpResult RunModelDump(const DumpOptions& options, const RunContext& context) {
  const std::unique_ptr<ModelWeights> model = OpenModel(options.model);
  TokenData tokens = LoadTokens(options, *model);
  const TraceHeader header = MakeHeader(options, context, *model, tokens);
  const int64_t row_sequences = std::count_if(header.sequences.begin(), header.sequences.end(),
                                              [](const TraceSequence& s) { return s.has_rows; });
  const CaptureSpec spec = SpecOf(options, row_sequences);
  DumpResult result = ResultOf(options, header);
  result.model_layers = model->config().layers;
  result.notes.insert(result.notes.begin(), tokens.notes.begin(), tokens.notes.end());
  Tell(context, result.notes);
  std::map<int, LayerShape> shapes;
  for (const int layer : header.layers) shapes[layer] = model->config().ShapeOfLayer(layer);
  WarnAboutPacking(shapes, context, result);
  if (options.dry_run) {
    result.estimate = EstimateModelDump(*model, spec, header, tokens.sequences, options, context);
    return result;
  }
  // First, because it refuses devices and sequences before anything is written.
  ModelRunner runner(*model, std::move(tokens.sequences), options.device, context);
  TraceWriter writer(options.out, header, options.resume, options.force);
  result.was_complete = writer.finished();
  const bool all_there = std::all_of(header.layers.begin(), header.layers.end(),
                                     [&](int layer) { return writer.HasLayer(layer); });
  Resumable(options, [&] {
    if (!all_there) RunLayers(context, header, spec, runner, writer);
    writer.Finish();
  });
  return result;
}

}  // namespace oscar
