#include "oscar/model/moment_accumulator.h"

#include <c10/core/InferenceMode.h>
#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "oscar/core/error.h"
#include "oscar/model/second_moment.h"
#include "oscar/model/torch_support.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

// Tokens of one step of the second pass.
constexpr int64_t kWeightBlock = 512;
// Independent sums of the second pass, at least: enough for a good balance on a few threads.
constexpr int64_t kMinSstItems = 8;

// Rows of head `h` of a contiguous CPU tensor [T, heads, dim].
template <typename T>
StridedRows<T> HeadOf(const at::Tensor& x, int64_t head, int64_t begin, int64_t count) {
  const int64_t stride = x.size(1) * x.size(2);
  return {static_cast<const T*>(x.const_data_ptr()) + begin * stride + head * x.size(2), count,
          stride};
}

// Calls body with the rows of one head in their own type.
template <typename Body>
void WithRows(const at::Tensor& x, int64_t head, int64_t begin, int64_t count, const Body& body) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return body(HeadOf<float>(x, head, begin, count));
    case at::kBFloat16:
      return body(HeadOf<BFloat16>(x, head, begin, count));
    default:
      OSCAR_CHECK(false);
  }
}

// Second moments and sums of one kind of rows (q, k, v or o), all heads.
class HeadMoments {
 public:
  virtual ~HeadMoments() = default;
  // Work items of Add(), independent of one another.
  virtual int64_t items() const = 0;
  virtual void Add(const at::Tensor& x, int64_t item) = 0;
  virtual MomentTensor Matrices() const = 0;
  virtual MomentTensor Sums() const = 0;
};

class CpuHeadMoments final : public HeadMoments {
 public:
  CpuHeadMoments(int64_t heads, int64_t dim)
      : sums_(static_cast<size_t>(heads), SecondMomentSum(dim)) {}
  int64_t items() const override { return static_cast<int64_t>(sums_.size()); }
  void Add(const at::Tensor& x, int64_t item) override {
    SecondMomentSum& sum = sums_[static_cast<size_t>(item)];
    if (x.scalar_type() == at::kDouble) {
      sum.Add(HeadOf<double>(x, item, 0, x.size(0)));
    } else {
      WithRows(x, item, 0, x.size(0), [&](const auto& rows) { sum.Add(rows); });
    }
  }
  MomentTensor Matrices() const override {
    const int64_t dim = sums_[0].dim();
    MomentTensor out{{items(), dim, dim},
                     std::vector<double>(static_cast<size_t>(items() * dim * dim))};
    for (int64_t h = 0; h < items(); ++h) {
      sums_[static_cast<size_t>(h)].StoreMatrix(out.data.data() + h * dim * dim);
    }
    return out;
  }
  MomentTensor Sums() const override {
    MomentTensor out{{items(), sums_[0].dim()}, {}};
    for (const SecondMomentSum& sum : sums_) {
      out.data.insert(out.data.end(), sum.row_sum().begin(), sum.row_sum().end());
    }
    return out;
  }

 private:
  std::vector<SecondMomentSum> sums_;
};

MomentTensor ToMomentTensor(const at::Tensor& x) {
  const at::Tensor host = x.to(at::kCPU, at::kDouble).contiguous();
  const double* data = host.const_data_ptr<double>();
  return {host.sizes().vec(), std::vector<double>(data, data + host.numel())};
}

// On other devices: float64 products with ATen.
class DeviceHeadMoments final : public HeadMoments {
 public:
  DeviceHeadMoments(int64_t heads, int64_t dim, at::Device device)
      : matrices_(at::zeros({heads, dim, dim}, at::TensorOptions(at::kDouble).device(device))),
        sums_(at::zeros({heads, dim}, at::TensorOptions(at::kDouble).device(device))) {}
  int64_t items() const override { return 1; }
  void Add(const at::Tensor& x, int64_t) override {
    const at::Tensor wide = x.to(at::kDouble).permute({1, 0, 2});  // [H, T, D]
    matrices_.baddbmm_(wide.transpose(1, 2), wide);
    sums_.add_(wide.sum(1));
  }
  MomentTensor Matrices() const override { return ToMomentTensor(matrices_); }
  MomentTensor Sums() const override { return ToMomentTensor(sums_); }

 private:
  at::Tensor matrices_, sums_;
};

std::unique_ptr<HeadMoments> MakeHeadMoments(int64_t heads, int64_t dim, at::Device device) {
  if (device.is_cpu()) return std::make_unique<CpuHeadMoments>(heads, dim);
  return std::make_unique<DeviceHeadMoments>(heads, dim, device);
}

bool AllFinite(const MomentTensor& tensor) {
  return std::all_of(tensor.data.begin(), tensor.data.end(),
                     [](double x) { return std::isfinite(x); });
}

// First token of x [T, ...] with a value that is not finite, or -1.
int64_t FirstBadToken(const at::Tensor& x) {
  const at::Tensor bad = at::isfinite(x).logical_not().reshape({x.size(0), -1}).any(1);
  return bad.any().item<bool>() ? bad.to(at::kInt).argmax().item<int64_t>() : -1;
}

// Weights w_t = k_t A k_t^T of one KV head's block of keys; A [D, D] float64.
at::Tensor ScoreWeights(const at::Tensor& keys, const at::Tensor& a) {
  const at::Tensor wide = keys.to(at::kDouble);
  return at::mm(wide, a).mul_(wide).sum(1);
}

}  // namespace

struct MomentAccumulator::Impl {
  // The kinds of rows and the moments that each gives.
  struct Kind {
    char name;
    int64_t heads, dim;
    std::optional<Moment> matrices, sums;
    const at::Tensor& (*rows)(const AttentionTensors&);
    std::unique_ptr<HeadMoments> total;
  };
  // Keys and values kept for the second pass.
  struct Kept {
    at::Tensor k, v;
  };

  int layer;
  LayerShape shape;
  std::vector<Kind> kinds;
  bool wants_sst = false;
  std::vector<Kept> kept;
  uint64_t count = 0;

  void Start(at::Device device) {
    for (Kind& kind : kinds) kind.total = MakeHeadMoments(kind.heads, kind.dim, device);
  }
  void CheckFinite(int64_t sequence, const AttentionTensors& rows) const;
  MomentTensor GroupMeans(const MomentTensor& qq) const;
  void AddSst(LayerMoments& out) const;
  void SstOnCpu(const at::Tensor& a, MomentTensor& sst, MomentTensor& weight) const;
  void SstOnDevice(const at::Tensor& a, MomentTensor& sst, MomentTensor& weight) const;
};

MomentAccumulator::MomentAccumulator(int layer, const LayerShape& shape,
                                     const std::vector<Moment>& moments)
    : impl_(std::make_unique<Impl>()) {
  impl_->layer = layer;
  impl_->shape = shape;
  const auto wanted = [&](Moment id) -> std::optional<Moment> {
    if (std::find(moments.begin(), moments.end(), id) == moments.end()) return std::nullopt;
    return id;
  };
  impl_->wants_sst = NeedsSecondPass(moments);
  const auto add = [&](char name, int64_t heads, int64_t dim, std::optional<Moment> matrices,
                       std::optional<Moment> sums,
                       const at::Tensor& (*rows)(const AttentionTensors&)) {
    if (matrices || sums) impl_->kinds.push_back({name, heads, dim, matrices, sums, rows, nullptr});
  };
  const std::optional<Moment> qq =
      impl_->wants_sst ? std::optional(Moment::kQq) : wanted(Moment::kQq);
  add('q', shape.q_heads, shape.k_dim, qq, wanted(Moment::kQSum),
      [](const AttentionTensors& x) -> const at::Tensor& { return x.q; });
  add('k', shape.kv_heads, shape.k_dim, wanted(Moment::kKk), wanted(Moment::kKSum),
      [](const AttentionTensors& x) -> const at::Tensor& { return x.k; });
  add('v', shape.kv_heads, shape.v_dim, wanted(Moment::kVv), wanted(Moment::kVSum),
      [](const AttentionTensors& x) -> const at::Tensor& { return x.v; });
  add('o', shape.q_heads, shape.v_dim, wanted(Moment::kOo), std::nullopt,
      [](const AttentionTensors& x) -> const at::Tensor& { return x.o; });
}

MomentAccumulator::~MomentAccumulator() = default;

bool MomentAccumulator::NeedsOutputs(const std::vector<Moment>& moments) {
  return std::find(moments.begin(), moments.end(), Moment::kOo) != moments.end();
}

bool MomentAccumulator::NeedsSecondPass(const std::vector<Moment>& moments) {
  return std::find(moments.begin(), moments.end(), Moment::kSst) != moments.end();
}

void MomentAccumulator::Impl::CheckFinite(int64_t sequence, const AttentionTensors& rows) const {
  for (const Kind& kind : kinds) {
    if (AllFinite(kind.total->Sums())) continue;
    throw Error(ErrorCode::kNumeric, Message("layer ", layer, ", sequence ", sequence, ": ",
                                             kind.name, " has a value that is not finite at token ",
                                             FirstBadToken(kind.rows(rows))));
  }
}

void MomentAccumulator::Add(int64_t sequence, const AttentionTensors& rows) {
  Impl& m = *impl_;
  if (m.count == 0) m.Start(rows.q.device());
  struct Item {
    Impl::Kind* kind;
    int64_t index;
  };
  std::vector<Item> items;
  for (Impl::Kind& kind : m.kinds) {
    const at::Tensor& x = kind.rows(rows);
    OSCAR_CHECK(x.size(1) == kind.heads && x.size(2) == kind.dim && x.is_contiguous());
    for (int64_t i = 0; i < kind.total->items(); ++i) items.push_back({&kind, i});
  }
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Item& item = items[static_cast<size_t>(i)];
      item.kind->total->Add(item.kind->rows(rows), item.index);
    }
  };
  const auto count = static_cast<int64_t>(items.size());
  if (rows.q.is_cpu()) {
    ParallelRange(count, 1, add);
  } else {
    add(0, count);
  }
  m.CheckFinite(sequence, rows);
  if (m.wants_sst) m.kept.push_back({rows.k, rows.v});
  m.count += static_cast<uint64_t>(rows.q.size(0));
}

LayerMoments MomentAccumulator::Finish() {
  Impl& m = *impl_;
  if (m.count == 0) {
    throw Error(ErrorCode::kData, Message("layer ", m.layer, ": no token was observed"));
  }
  LayerMoments out;
  out.shape = m.shape;
  out.count = m.count;
  for (const Impl::Kind& kind : m.kinds) {
    if (kind.matrices) out.sums[*kind.matrices] = kind.total->Matrices();
    if (kind.sums) out.sums[*kind.sums] = kind.total->Sums();
  }
  if (m.wants_sst) m.AddSst(out);
  m.kept.clear();
  return out;
}

// A of every KV head: mean over tokens and the group's query heads of q^T q.
MomentTensor MomentAccumulator::Impl::GroupMeans(const MomentTensor& qq) const {
  const int64_t size = shape.k_dim * shape.k_dim;
  MomentTensor out{{shape.kv_heads, shape.k_dim, shape.k_dim},
                   std::vector<double>(static_cast<size_t>(shape.kv_heads * size))};
  for (int64_t h = 0; h < shape.q_heads; ++h) {
    const double* from = qq.data.data() + h * size;
    double* to = out.data.data() + h / shape.group() * size;
    for (int64_t i = 0; i < size; ++i) to[i] += from[i];
  }
  const double scale = 1.0 / (static_cast<double>(count) * static_cast<double>(shape.group()));
  for (double& x : out.data) x *= scale;
  return out;
}

void MomentAccumulator::Impl::AddSst(LayerMoments& out) const {
  const MomentTensor& qq = out.At(Moment::kQq);
  MomentTensor means = GroupMeans(qq);
  const at::Tensor a = at::from_blob(means.data.data(), means.shape, at::kDouble);
  MomentTensor sst{{shape.kv_heads, shape.v_dim, shape.v_dim}, {}};
  MomentTensor weight{{shape.kv_heads}, std::vector<double>(static_cast<size_t>(shape.kv_heads))};
  if (kept[0].k.is_cpu()) {
    SstOnCpu(a, sst, weight);
  } else {
    SstOnDevice(a.to(kept[0].k.device()), sst, weight);
  }
  out.sst_qq_hash = HashOf(qq);
  out.sums[Moment::kSst] = std::move(sst);
  out.sums[Moment::kSstWeight] = std::move(weight);
}

// The blocks of tokens are dealt to several sums per KV head, so that few heads keep all threads
// busy; the deal does not depend on the number of threads.
void MomentAccumulator::Impl::SstOnCpu(const at::Tensor& a, MomentTensor& sst,
                                       MomentTensor& weight) const {
  const int64_t parts = (kMinSstItems + shape.kv_heads - 1) / shape.kv_heads;
  const int64_t items = shape.kv_heads * parts;
  std::vector<SecondMomentSum> sums(static_cast<size_t>(items), SecondMomentSum(shape.v_dim));
  std::vector<double> weights(sums.size());
  const auto add_block = [&](int64_t item, const Kept& rows, int64_t begin, int64_t tokens) {
    const int64_t head = item / parts;
    const at::Tensor w =
        ScoreWeights(rows.k.narrow(0, begin, tokens).select(1, head), a[head]).contiguous();
    weights[static_cast<size_t>(item)] += w.sum().item<double>();
    WithRows(rows.v, head, begin, tokens, [&](const auto& values) {
      sums[static_cast<size_t>(item)].AddWeighted(values, w.const_data_ptr<double>());
    });
  };
  ParallelRange(items, 1, [&](int64_t first, int64_t last) {
    const c10::InferenceMode inference;
    for (int64_t item = first; item < last; ++item) {
      int64_t block = 0;
      for (const Kept& rows : kept) {
        for (int64_t begin = 0; begin < rows.k.size(0); begin += kWeightBlock, ++block) {
          if (block % parts != item % parts) continue;
          add_block(item, rows, begin, std::min(kWeightBlock, rows.k.size(0) - begin));
        }
      }
    }
  });
  const int64_t size = shape.v_dim * shape.v_dim;
  sst.data.assign(static_cast<size_t>(shape.kv_heads * size), 0.0);
  std::vector<double> part(static_cast<size_t>(size));
  for (int64_t item = 0; item < items; ++item) {
    sums[static_cast<size_t>(item)].StoreMatrix(part.data());
    double* to = sst.data.data() + item / parts * size;
    for (int64_t i = 0; i < size; ++i) to[i] += part[static_cast<size_t>(i)];
    weight.data[static_cast<size_t>(item / parts)] += weights[static_cast<size_t>(item)];
  }
}

void MomentAccumulator::Impl::SstOnDevice(const at::Tensor& a, MomentTensor& sst,
                                          MomentTensor& weight) const {
  at::Tensor total = at::zeros({shape.kv_heads, shape.v_dim, shape.v_dim}, a.options());
  at::Tensor total_weight = at::zeros({shape.kv_heads}, a.options());
  for (const Kept& rows : kept) {
    const at::Tensor k = rows.k.to(at::kDouble).permute({1, 0, 2});  // [H_kv, T, D_k]
    const at::Tensor v = rows.v.to(at::kDouble).permute({1, 0, 2});
    const at::Tensor w = at::bmm(k, a).mul_(k).sum(2);  // [H_kv, T]
    total.baddbmm_((v * w.unsqueeze(2)).transpose(1, 2), v);
    total_weight.add_(w.sum(1));
  }
  sst = ToMomentTensor(total);
  weight = ToMomentTensor(total_weight);
}

}  // namespace oscar
