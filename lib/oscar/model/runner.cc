#include "oscar/model/runner.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/model/attention.h"
#include "oscar/model/layer_kernels.h"
#include "oscar/model/moment_accumulator.h"
#include "oscar/model/runner_impl.h"
#include "oscar/model/torch_support.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

template <typename T>
HeadRows<T> RowsOf(const at::Tensor& x) {
  OSCAR_CHECK(x.is_cpu() && x.is_contiguous());
  return {x.data_ptr<float>(), x.size(0), x.size(1), x.size(2)};
}

void AppendRounded(const at::Tensor& x, std::vector<BFloat16>& out) {
  const at::Tensor host = x.cpu();
  const float* from = host.const_data_ptr<float>();
  const auto start = static_cast<int64_t>(out.size());
  out.resize(static_cast<size_t>(start + host.numel()));
  ParallelRange(host.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    RoundToBFloat16(from + begin, end - begin, out.data() + start + begin);
  });
}

std::vector<BFloat16> Rounded(const std::vector<float>& x) {
  std::vector<BFloat16> out(x.size());
  RoundToBFloat16(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

// What a layer's run collects for the caller: moments over all tokens, rows of some sequences.
class Capture {
 public:
  Capture(int layer, const LayerShape& shape, const CaptureSpec& spec, int64_t row_tokens)
      : spec_(spec), moments_(layer, shape, spec.moments) {
    out_.layer = layer;
    const auto reserve = [&](std::vector<BFloat16>& rows, int64_t heads, int64_t dim) {
      rows.reserve(static_cast<size_t>(row_tokens * heads * dim));
    };
    reserve(out_.q, shape.q_heads, shape.k_dim);
    reserve(out_.k, shape.kv_heads, shape.k_dim);
    reserve(out_.v, shape.kv_heads, shape.v_dim);
  }
  void SetOutputProjection(const std::vector<float>& o) { out_.o_proj = Rounded(o); }
  void Add(int64_t sequence, const AttentionTensors& rows) {
    moments_.Add(sequence, rows);
    if (sequence >= spec_.row_sequences) return;
    AppendRounded(rows.q, out_.q);
    AppendRounded(rows.k, out_.k);
    AppendRounded(rows.v, out_.v);
  }
  LayerCapture Finish() {
    out_.moments = moments_.Finish();
    return std::move(out_);
  }

 private:
  const CaptureSpec& spec_;
  MomentAccumulator moments_;
  LayerCapture out_;
};

void CallSink(AttentionSink& sink, int layer, int64_t sequence, const AttentionTensors& rows) {
  const at::Tensor q = rows.q.cpu();
  const at::Tensor k = rows.k.cpu();
  const at::Tensor v = rows.v.cpu();
  const at::Tensor o = rows.o.cpu();
  sink.OnSequence({layer, sequence, RowsOf<const float>(q), RowsOf<const float>(k),
                   RowsOf<const float>(v), RowsOf<const float>(o)});
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Attention of one stream. `positions` are 0..T-1.
at::Tensor StreamAttention(const RunnerData::Stream& stream, int layer,
                           const DecoderLayer::Heads& heads, const AttentionRule& rule,
                           std::span<const int64_t> positions) {
  if (stream.tap == nullptr) return CausalAttention(heads.q, heads.k, heads.v, rule);
  const at::Tensor k = heads.k.cpu();
  const at::Tensor v = heads.v.cpu();
  const at::Tensor k_hat = at::empty_like(k);
  const at::Tensor v_hat = at::empty_like(v);
  stream.tap->Apply(layer, positions, RowsOf<const float>(k), RowsOf<const float>(v),
                    RowsOf<float>(k_hat), RowsOf<float>(v_hat));
  const bool all_exact = stream.use_windows && k.size(0) < stream.windows.ShortestUseful();
  const at::Device device = heads.q.device();
  if (stream.use_windows && stream.tap->ChangesWindows(layer)) {
    const at::Tensor k_window = at::empty_like(k);
    const at::Tensor v_window = at::empty_like(v);
    stream.tap->ApplyWindows(layer, RowsOf<const float>(k), RowsOf<const float>(v),
                             RowsOf<float>(k_window), RowsOf<float>(v_window));
    if (all_exact) return CausalAttention(heads.q, k_window.to(device), v_window.to(device), rule);
    return CacheAttention(heads.q, k_window.to(device), v_window.to(device), k_hat.to(device),
                          v_hat.to(device), rule, stream.windows);
  }
  if (all_exact || (SameBits(k, k_hat) && SameBits(v, v_hat))) {
    return CausalAttention(heads.q, heads.k, heads.v, rule);
  }
  if (!stream.use_windows) {
    return CausalAttention(heads.q, k_hat.to(device), v_hat.to(device), rule);
  }
  return CacheAttention(heads.q, heads.k, heads.v, k_hat.to(device), v_hat.to(device), rule,
                        stream.windows);
}

void CheckSequences(const std::vector<std::vector<int32_t>>& sequences, const ModelConfig& config) {
  if (sequences.empty()) throw Error(ErrorCode::kData, "no sequence of tokens to run");
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto length = static_cast<int64_t>(sequences[s].size());
    if (length == 0) throw Error(ErrorCode::kData, Message("sequence ", s, " is empty"));
    if (config.max_positions > 0 && length > config.max_positions) {
      throw Error(ErrorCode::kData,
                  Message("sequence ", s, " has ", length,
                          " tokens, the model knows positions below ", config.max_positions),
                  "use a shorter --window");
    }
  }
}

}  // namespace

RunnerData::Stream& RunnerData::StreamAt(int stream) {
  OSCAR_CHECK(stream >= 0 && static_cast<size_t>(stream) < streams.size());
  return streams[static_cast<size_t>(stream)];
}

at::Tensor RunnerData::Embed() const {
  const at::Tensor hidden = at::empty({tokens(), config.hidden}, at::kFloat);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<float> rows = weights.EmbeddingRows(sequences[s]);
    OSCAR_CHECK(static_cast<int64_t>(rows.size()) == length(s) * config.hidden);
    std::copy(rows.begin(), rows.end(), hidden.data_ptr<float>() + starts[s] * config.hidden);
  }
  return hidden.to(device);
}

ModelRunner::ModelRunner(const ModelWeights& weights, std::vector<std::vector<int32_t>> sequences,
                         const std::string& device, RunContext context, RunnerOptions options)
    : impl_(std::make_unique<RunnerData>(weights, std::move(sequences), context, options)) {
  CheckSequences(impl_->sequences, impl_->config);
  if (impl_->config.activation != "silu") {
    throw Error(ErrorCode::kUnsupported,
                Message("activation ", Quoted(impl_->config.activation), ": only silu is known"));
  }
  SetTorchThreads(context.threads);
  GuardTorch("start of the model's run", [&] {
    impl_->device = ParseDevice(device);
    int64_t longest = 0;
    impl_->starts.push_back(0);
    for (const std::vector<int32_t>& ids : impl_->sequences) {
      longest = std::max(longest, static_cast<int64_t>(ids.size()));
      impl_->starts.push_back(impl_->starts.back() + static_cast<int64_t>(ids.size()));
    }
    impl_->rope = std::make_unique<RopeTables>(impl_->config.rope, longest, impl_->device);
    impl_->streams.emplace_back();
    impl_->streams[0].hidden = impl_->Embed();
  });
}

ModelRunner::~ModelRunner() = default;

int ModelRunner::AddStream(KvTap* tap, const Windows& windows, bool use_windows) {
  OSCAR_CHECK(tap != nullptr && impl_->next_layer == 0);
  impl_->streams.push_back({tap, windows, use_windows, impl_->streams[0].hidden, {}, {}});
  return static_cast<int>(impl_->streams.size()) - 1;
}

void ModelRunner::AddSink(AttentionSink* sink, int stream) {
  OSCAR_CHECK(sink != nullptr);
  impl_->StreamAt(stream).sinks.push_back(sink);
}

int64_t ModelRunner::next_layer() const { return impl_->next_layer; }
int64_t ModelRunner::total_tokens() const { return impl_->tokens(); }

namespace {

// One layer over all sequences and streams. Collects the streams' new hidden states and leaves the
// runner alone.
class LayerRun {
 public:
  LayerRun(RunnerData& runner, const CaptureSpec* spec)
      : runner_(runner),
        layer_(static_cast<int>(runner.next_layer)),
        shape_(runner.config.ShapeOfLayer(runner.next_layer)) {
    LayerWeights weights = runner.weights.LoadLayer(layer_, runner.context.threads);
    runner.weights.ReleaseLayer(layer_);
    if (spec != nullptr) {
      const size_t kept = std::min(static_cast<size_t>(std::max<int64_t>(spec->row_sequences, 0)),
                                   runner.sequences.size());
      capture_.emplace(layer_, shape_, *spec, runner.starts[kept]);
      capture_->SetOutputProjection(weights.o);
    }
    decoder_.emplace(runner.config, shape_, std::move(weights), runner.device,
                     runner.options.fused_loops);
    for (const RunnerData::Stream& stream : runner.streams) {
      results_.push_back(at::empty_like(stream.hidden));
    }
  }

  void Run() {
    for (RunnerData::Stream& stream : runner_.streams) {
      for (AttentionSink* sink : stream.sinks) sink->BeginLayer(layer_, shape_);
    }
    for (size_t s = 0; s < runner_.sequences.size(); ++s) {
      if (runner_.context.cancel != nullptr) runner_.context.cancel->ThrowIfCancelled("");
      for (size_t stream = 0; stream < runner_.streams.size(); ++stream) RunSequence(s, stream);
    }
  }

  // nullopt when nothing was asked for.
  std::optional<LayerCapture> FinishCapture() {
    if (!capture_) return std::nullopt;
    return capture_->Finish();
  }

  void Commit() {
    for (size_t i = 0; i < results_.size(); ++i) {
      runner_.streams[i].hidden = results_[i];
      runner_.streams[i].on_host = at::Tensor();
      for (AttentionSink* sink : runner_.streams[i].sinks) sink->EndLayer(layer_);
    }
    ++runner_.next_layer;
  }

 private:
  void RunSequence(size_t s, size_t index) {
    const RunnerData::Stream& stream = runner_.streams[index];
    const int64_t tokens = runner_.length(s);
    while (static_cast<int64_t>(positions_.size()) < tokens) {
      positions_.push_back(static_cast<int64_t>(positions_.size()));
    }
    const at::Tensor hidden = stream.hidden.narrow(0, runner_.starts[s], tokens);
    const DecoderLayer::Heads heads = decoder_->Project(hidden, *runner_.rope, runner_.scratch);
    const AttentionRule rule{shape_.softmax_scale, shape_.window,
                             runner_.options.fused_loops && runner_.device.is_cpu()};
    const at::Tensor o = StreamAttention(stream, layer_, heads, rule,
                                         std::span(positions_).first(static_cast<size_t>(tokens)));
    const AttentionTensors rows{heads.q, heads.k, heads.v, o};
    const auto sequence = static_cast<int64_t>(s);
    if (index == 0 && capture_) capture_->Add(sequence, rows);
    for (AttentionSink* sink : stream.sinks) CallSink(*sink, layer_, sequence, rows);
    decoder_->Finish(hidden, o, results_[index].narrow(0, runner_.starts[s], tokens),
                     runner_.scratch);
  }

  RunnerData& runner_;
  int layer_;
  LayerShape shape_;
  std::optional<Capture> capture_;
  std::optional<DecoderLayer> decoder_;
  std::vector<at::Tensor> results_;
  std::vector<int64_t> positions_;
};

}  // namespace

void ModelRunner::RunLayer(const CaptureSpec* spec, LayerCapture* capture) {
  OSCAR_CHECK(impl_->next_layer < impl_->config.layers);
  OSCAR_CHECK((spec == nullptr) == (capture == nullptr));
  GuardTorch(Message("layer ", impl_->next_layer), [&] {
    LayerRun run(*impl_, spec);
    run.Run();
    std::optional<LayerCapture> result = run.FinishCapture();
    run.Commit();
    if (result) *capture = std::move(*result);
  });
}

const float* ModelRunner::Hidden(int stream) const {
  RunnerData::Stream& s = impl_->StreamAt(stream);
  if (s.hidden.is_cpu()) return s.hidden.const_data_ptr<float>();
  if (!s.on_host.defined()) s.on_host = s.hidden.cpu();
  return s.on_host.const_data_ptr<float>();
}

int64_t EstimateRunnerBytes(const ModelConfig& config, int64_t total_tokens, int64_t longest,
                            int64_t streams) {
  int64_t layer_parameters = 0;
  int64_t kept = 0;
  int64_t working = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerShape s = config.ShapeOfLayer(layer);
    const int64_t q = s.q_heads * s.k_dim;
    const int64_t kv = s.kv_heads * (s.k_dim + s.v_dim);
    const int64_t o = s.q_heads * s.v_dim;
    layer_parameters = std::max(layer_parameters, config.hidden * (2 * (q + kv) + o) +
                                                      3 * config.hidden * config.intermediate);
    // float32 keys and values for the second pass, bfloat16 rows.
    kept = std::max(kept, total_tokens * (kv * 4 + (q + kv) * 2));
    // q, k, v, o, once more for permuted copies, and a block of tokens in a projection or the MLP.
    const int64_t block = std::min(longest, DecoderLayer::TokenBlock(config));
    working = std::max(working,
                       4 * (2 * longest * (q + kv + o) +
                            block * (config.hidden + 2 * std::max(config.intermediate, q + kv))));
  }
  constexpr int64_t kLibTorch = int64_t{300} << 20;
  return kLibTorch + 2 * streams * total_tokens * config.hidden * 4 + layer_parameters * 4 + kept +
         working;
}

}  // namespace oscar
