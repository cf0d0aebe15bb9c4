#include "oscar/bench/torch_part.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "oscar/bench/measure.h"
#include "oscar/core/error.h"
#include "oscar/cuda/write.h"
#include "oscar/model/torch_decode.h"

namespace oscar {
namespace {

constexpr int kSdpaReplays = 11;
constexpr int kStepReplays = 11;

// One decode step of a model: products of random weights and the kernels on random caches.
class ModelStep {
 public:
  ModelStep(const StepCase& c, const CachePool& pool, const DeviceInfo& info, int device,
            const DeviceStream& stream)
      : c_(c),
        pool_(pool),
        decoder_(Sizes(c, info, device)),
        workspace_(c.attention.shape, c.attention.batch) {
    const DecodeCase& a = c.attention;
    const CacheShape& cache = a.shape.cache;
    workspace_.Plan(std::vector<RequestLengths>(static_cast<size_t>(a.batch), a.Each()),
                    stream.get());
    const int64_t kv = a.batch * cache.heads * cache.dim;
    ring_ = DeviceBuffer(c.model.layers * 2 * kv * 2);
    q_ = DeviceBuffer(a.batch * a.shape.q_heads * cache.dim * 2);
    lse_ = DeviceBuffer(a.batch * a.shape.q_heads * 4);
    const std::vector<BFloat16> rotations = NormalRows(
        c.model.layers * cache.dim * cache.dim, 12, 1 / std::sqrt(static_cast<double>(cache.dim)));
    rotations_ = Uploaded(rotations.data(), static_cast<int64_t>(rotations.size()) * 2);
    // Keys and values lie side by side in a row of the projection: token i's keys are block 2 i.
    std::vector<int32_t> source;
    for (int64_t i = 0; i < a.batch; ++i) source.push_back(static_cast<int32_t>(2 * i));
    source_ = Uploaded(source.data(), a.batch * 4);
    stream.Synchronize();
  }

  enum class Part { kWhole, kProducts, kAttention };

  void Run(Part part, Stream stream) {
    const int64_t batch = c_.attention.batch;
    const bool products = part == Part::kProducts;
    for (int64_t layer = 0; layer < c_.model.layers; ++layer) {
      if (part != Part::kAttention) decoder_.Before(layer, batch, products, stream);
      if (!products) Attend(layer, stream);
      if (part != Part::kAttention) decoder_.After(layer, batch, products, stream);
    }
    if (part != Part::kAttention) decoder_.Logits(batch, products, stream);
  }

 private:
  static DecoderSizes Sizes(const StepCase& c, const DeviceInfo& info, int device) {
    const ModelShape& m = c.model;
    DecoderSizes sizes;
    sizes.hidden = m.hidden;
    sizes.q_width = m.q_heads * m.head_dim;
    sizes.kv_width = m.kv_heads * m.head_dim;
    sizes.intermediate = m.intermediate;
    sizes.vocabulary = m.vocabulary;
    const int64_t layer_bytes =
        2 * m.hidden * (2 * sizes.q_width + 2 * sizes.kv_width + 3 * m.intermediate);
    sizes.weight_sets = std::min(m.layers, CopiesBeyondL2(layer_bytes, info.l2_bytes) + 1);
    sizes.max_batch = c.attention.batch;
    sizes.device = device;
    return sizes;
  }

  // Rows of the new token to the bf16 ring, queries rotated, attention. The rotation of V is folded
  // into the weights, as engines do, so V is not rotated here.
  void Attend(int64_t layer, Stream stream) {
    const DecodeCase& a = c_.attention;
    const CacheShape& cache = a.shape.cache;
    const bool int2 = a.format == CacheFormat::kInt2;
    const int64_t width = cache.heads * cache.dim;
    const auto* const kv = static_cast<const BFloat16*>(decoder_.kv());
    BFloat16* const ring = ring_.As<BFloat16>() + layer * 2 * a.batch * width;
    const BFloat16* const rotation = rotations_.As<BFloat16>() + layer * cache.dim * cache.dim;
    WriteJob jobs[3];
    for (int64_t side = 0; side < 2; ++side) {
      WriteJob& job = jobs[side];
      job.rows = kv + side * width;
      job.tokens = a.batch;
      job.heads = cache.heads;
      job.source_slots = {source_.data(), DType::kI32};
      job.rotation = int2 && side == 0 ? rotation : nullptr;
      job.out_rows = ring + side * a.batch * width;
    }
    jobs[2].rows = static_cast<const BFloat16*>(decoder_.q());
    jobs[2].tokens = a.batch;
    jobs[2].heads = a.shape.q_heads;
    jobs[2].rotation = rotation;
    jobs[2].out_rows = q_.As<BFloat16>();
    LaunchWrite(cache, {jobs, int2 ? size_t{3} : size_t{2}}, stream);
    DecodeInputs in = pool_.Inputs(a, layer);
    in.q = int2 ? q_.As<BFloat16>() : jobs[2].rows;
    in.quantised_settled = true;  // a step writes to the bf16 ring only
    LaunchDecode(workspace_, in, {decoder_.attention_output(), DType::kBF16, lse_.As<float>()},
                 stream);
  }

  const StepCase& c_;
  const CachePool& pool_;
  TorchDecoder decoder_;
  DecodeWorkspace workspace_;
  DeviceBuffer ring_, q_, lse_, rotations_, source_;
};

}  // namespace

bool TorchPartAvailable() { return HasTorchDecode(); }

std::optional<Spread> TimeSdpa(const DecodeCase& c, SdpaKernel kernel, const CachePool& pool,
                               const DeviceInfo& info, int device, const DeviceStream& stream) {
  const int64_t outputs = c.batch * c.shape.q_heads * c.shape.cache.dim;
  const std::vector<BFloat16> rows = NormalRows(outputs, 6, 1);
  const DeviceBuffer q = Uploaded(rows.data(), outputs * 2);
  const auto run = [&](Stream s, int i) {
    const RowCache cache = pool.Contiguous(c, i);
    TorchAttentionCall call;
    call.batch = c.batch;
    call.q_heads = c.shape.q_heads;
    call.kv_heads = c.shape.cache.heads;
    call.dim = c.shape.cache.dim;
    call.tokens = c.context;
    call.q = q.data();
    call.k = cache.k;
    call.v = cache.v;
    call.logit_scale = 1 / std::sqrt(static_cast<float>(call.dim));
    call.device = device;
    RunTorchAttention(
        kernel == SdpaKernel::kFlash ? TorchAttention::kFlash : TorchAttention::kCudnn, call, s);
  };
  try {
    // Twice, so that LibTorch holds the memory and the plan that the capture will ask for.
    for (int i = 0; i < 2; ++i) run(stream.get(), i);
    stream.Synchronize();
    return MeasureLaunches(stream, LaunchesFor(c.Bytes(), CopiesBeyondL2(c.Bytes(), info.l2_bytes)),
                           kSdpaReplays, run);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return std::nullopt;
  }
}

StepTimes TimeStep(const StepCase& c, const CachePool& pool, const DeviceInfo& info, int device,
                   const DeviceStream& stream) {
  ModelStep step(c, pool, info, device, stream);
  std::vector<std::function<void(Stream)>> parts;
  for (const auto part :
       {ModelStep::Part::kWhole, ModelStep::Part::kProducts, ModelStep::Part::kAttention}) {
    step.Run(part, stream.get());
    parts.push_back([&step, part](Stream s) { step.Run(part, s); });
  }
  stream.Synchronize();
  std::vector<Spread> spreads = MeasureInTurn(stream, kStepReplays, parts);
  for (Spread& spread : spreads) {
    for (double* x : {&spread.low, &spread.median, &spread.high}) *x /= 1000;
  }
  StepTimes times;
  times.step = spreads[0];
  times.gemm = spreads[1];
  times.attention = spreads[2];
  return times;
}

}  // namespace oscar
