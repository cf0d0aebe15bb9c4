#include "oscar/model/observer.h"

#include "oscar/core/error.h"
#include "oscar/model/attention.h"
#include "oscar/model/moment_accumulator.h"
#include "oscar/model/torch_support.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

at::Tensor View(HeadRows<const BFloat16> rows) {
  static_assert(sizeof(BFloat16) == sizeof(at::BFloat16));
  // ATen has no read-only tensors; this one is not written to.
  auto* data = const_cast<BFloat16*>(rows.data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return at::from_blob(data, {rows.tokens, rows.heads, rows.dim}, at::kBFloat16);
}

void CheckShape(int layer, char name, HeadRows<const BFloat16> rows, int64_t tokens, int64_t heads,
                int64_t dim) {
  if (rows.tokens == tokens && rows.heads == heads && rows.dim == dim) return;
  throw Error(ErrorCode::kMismatch, Message("layer ", layer, ": ", name, " rows are ",
                                            ShapeText({rows.tokens, rows.heads, rows.dim}),
                                            ", expected ", ShapeText({tokens, heads, dim})));
}

void Append(HeadRows<const BFloat16> rows, std::vector<BFloat16>& out) {
  out.insert(out.end(), rows.data, rows.data + rows.size());
}

}  // namespace

struct RowObserver::Impl {
  int layer;
  LayerShape shape;
  CaptureSpec spec;
  MomentAccumulator moments;
  LayerCapture capture;
  int64_t sequences = 0;
};

RowObserver::RowObserver(int layer, const LayerShape& shape, const CaptureSpec& spec, int threads)
    : impl_(new Impl{layer, shape, spec, MomentAccumulator(layer, shape, spec.moments), {}, 0}) {
  SetTorchThreads(threads);
  impl_->capture.layer = layer;
}

RowObserver::~RowObserver() = default;

void RowObserver::AddSequence(HeadRows<const BFloat16> q, HeadRows<const BFloat16> k,
                              HeadRows<const BFloat16> v) {
  Impl& m = *impl_;
  CheckShape(m.layer, 'q', q, q.tokens, m.shape.q_heads, m.shape.k_dim);
  CheckShape(m.layer, 'k', k, q.tokens, m.shape.kv_heads, m.shape.k_dim);
  CheckShape(m.layer, 'v', v, q.tokens, m.shape.kv_heads, m.shape.v_dim);
  const int64_t sequence = m.sequences++;
  if (q.tokens == 0) return;
  GuardTorch(Message("layer ", m.layer, ", sequence ", sequence), [&] {
    AttentionTensors rows{View(q), View(k), View(v), {}};
    if (MomentAccumulator::NeedsOutputs(m.spec.moments)) {
      rows.o = CausalAttentionFloat64(rows.q, rows.k, rows.v,
                                      {m.shape.softmax_scale, m.shape.window, false});
    }
    if (MomentAccumulator::NeedsSecondPass(m.spec.moments)) {
      rows.k = rows.k.clone();  // the caller's memory is gone by then
      rows.v = rows.v.clone();
    }
    m.moments.Add(sequence, rows);
  });
  if (sequence < m.spec.row_sequences) {
    Append(q, m.capture.q);
    Append(k, m.capture.k);
    Append(v, m.capture.v);
  }
}

LayerCapture RowObserver::Finish() {
  Impl& m = *impl_;
  GuardTorch(Message("layer ", m.layer), [&] { m.capture.moments = m.moments.Finish(); });
  return std::move(m.capture);
}

}  // namespace oscar
