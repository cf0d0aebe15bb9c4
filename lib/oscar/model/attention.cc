#include "oscar/model/attention.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/model/cpu_attention.h"
#include "oscar/model/torch_support.h"

namespace oscar {
namespace {

// Queries that share one mask. A block computes up to this many masked products per query more
// than needed, and copies its keys when they come from two places.
constexpr int64_t kQueryBlock = 256;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// [T, H, D] -> [H_kv, H / H_kv, T, D], a view.
at::Tensor GroupQueries(const at::Tensor& q, int64_t kv_heads) {
  return q.view({q.size(0), kv_heads, q.size(1) / kv_heads, q.size(2)}).permute({1, 2, 0, 3});
}

// [T, H_kv, D] -> [H_kv, group, T, D], a view that repeats each head.
at::Tensor RepeatHeads(const at::Tensor& k, int64_t group) {
  return k.permute({1, 0, 2}).unsqueeze(1).expand({k.size(1), group, k.size(0), k.size(2)});
}

// The fused kernels want keys and values of one width: zeros appended to the narrower side change
// neither the logits nor the first columns of the output.
at::Tensor PadTo(const at::Tensor& x, int64_t dim) {
  return x.size(2) == dim ? x : at::constant_pad_nd(x, {0, dim - x.size(2)});
}

// One fused attention call over all heads; mask [queries, keys] or none for causal.
at::Tensor Fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const std::optional<at::Tensor>& mask, double scale) {
  const int64_t kv_heads = k.size(1);
  const int64_t group = q.size(1) / kv_heads;
  const int64_t dim = std::max(k.size(2), v.size(2));
  const at::Tensor out = at::scaled_dot_product_attention(
      GroupQueries(PadTo(q, dim), kv_heads), RepeatHeads(PadTo(k, dim), group),
      RepeatHeads(PadTo(v, dim), group), mask, 0.0, !mask.has_value(), scale);
  return out.permute({2, 0, 1, 3}).narrow(3, 0, v.size(2)).reshape({q.size(0), q.size(1), -1});
}

// Zeroes of a mask row for the keys of `visible`, where the row's columns hold `columns`.
void Reveal(float* row, const KeyRange& columns, const KeyRange& visible) {
  const KeyRange part = Intersect(columns, visible);
  if (part.size() > 0) std::fill_n(row + (part.begin - columns.begin), part.size(), 0.0F);
}

at::Tensor Rows(const at::Tensor& x, const KeyRange& range) {
  return x.narrow(0, range.begin, range.size());
}

at::Tensor SlidingBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionRule& rule, int64_t begin, int64_t end) {
  const KeyRange keys = {VisibleKeys(begin, rule.window).begin, end};
  at::Tensor mask = at::full({end - begin, keys.size()}, kHidden, at::kFloat);
  for (int64_t i = begin; i < end; ++i) {
    Reveal(mask.data_ptr<float>() + (i - begin) * keys.size(), keys, VisibleKeys(i, rule.window));
  }
  return Fused(q.narrow(0, begin, end - begin), Rows(k, keys), Rows(v, keys), mask.to(q.options()),
               rule.scale);
}

// Keys of a block of queries: exact sink keys, keys from the cache, exact recent keys. A key that
// is quantised for some of the block's queries only stands in two parts, and the mask tells.
at::Tensor CacheBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& k_hat, const at::Tensor& v_hat, const AttentionRule& rule,
                      const Windows& windows, int64_t begin, int64_t end) {
  const KeyRange all = {VisibleKeys(begin, rule.window).begin, end};
  const KeyRange sink = Intersect(all, {0, windows.sink});
  const KeyRange cached = Intersect(all, {windows.sink, windows.RecentBegin(end - 1)});
  const KeyRange recent = Intersect(all, {std::max(windows.sink, windows.RecentBegin(begin)), end});
  const int64_t columns = sink.size() + cached.size() + recent.size();
  at::Tensor mask = at::full({end - begin, columns}, kHidden, at::kFloat);
  for (int64_t i = begin; i < end; ++i) {
    float* row = mask.data_ptr<float>() + (i - begin) * columns;
    const KeyRange visible = VisibleKeys(i, rule.window);
    const KeyRange exact = {windows.RecentBegin(i), i + 1};
    Reveal(row, sink, visible);
    row += sink.size();
    Reveal(row, cached, Intersect(visible, {0, exact.begin}));
    row += cached.size();
    Reveal(row, recent, Intersect(visible, exact));
  }
  const auto join = [&](const at::Tensor& exact, const at::Tensor& hat) {
    std::vector<at::Tensor> parts;
    if (sink.size() > 0) parts.push_back(Rows(exact, sink));
    if (cached.size() > 0) parts.push_back(Rows(hat, cached));
    if (recent.size() > 0) parts.push_back(Rows(exact, recent));
    return at::cat(parts);
  };
  return Fused(q.narrow(0, begin, end - begin), join(k, k_hat), join(v, v_hat),
               mask.to(q.options()), rule.scale);
}

template <typename Block>
at::Tensor InBlocks(int64_t tokens, int64_t block, const Block& body) {
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < tokens; begin += block) {
    parts.push_back(body(begin, std::min(begin + block, tokens)));
  }
  return at::cat(parts);
}

template <typename T>
HeadRows<T> RowsOf(const at::Tensor& x) {
  OSCAR_CHECK(x.is_cpu() && x.is_contiguous() && x.scalar_type() == at::kFloat);
  return {x.data_ptr<float>(), x.size(0), x.size(1), x.size(2)};
}

at::Tensor OnCpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const AttentionRule& rule, const std::optional<TappedCache>& cache) {
  at::Tensor o = at::empty({q.size(0), q.size(1), v.size(2)}, q.options());
  CpuAttention attention(RowsOf<const float>(q), RowsOf<const float>(k), RowsOf<const float>(v),
                         rule.scale, rule.window, cache, RowsOf<float>(o));
  ParallelRange(attention.pack_tasks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) attention.Pack(task);
  });
  // Tasks differ in length, so every thread takes the next one that is left.
  std::atomic<int64_t> next{0};
  ParallelRange(attention.tasks(), 1, [&](int64_t, int64_t) {
    CpuAttention::Scratch scratch;
    for (int64_t task = next++; task < attention.tasks(); task = next++) {
      attention.Run(task, scratch);
    }
  });
  return o;
}

}  // namespace

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionRule& rule) {
  const int64_t tokens = q.size(0);
  if (rule.fused) return OnCpu(q, k, v, rule, std::nullopt);
  if (rule.window == 0 || tokens <= rule.window) {
    return Fused(q, k, v, std::nullopt, rule.scale);
  }
  return InBlocks(tokens, kQueryBlock, [&](int64_t begin, int64_t end) {
    return SlidingBlock(q, k, v, rule, begin, end);
  });
}

at::Tensor CacheAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& k_hat, const at::Tensor& v_hat,
                          const AttentionRule& rule, const Windows& windows) {
  OSCAR_CHECK(windows.sink >= 0 && windows.recent >= 0 && windows.flush >= 1);
  if (rule.fused) {
    return OnCpu(q, k, v, rule,
                 TappedCache{RowsOf<const float>(k_hat), RowsOf<const float>(v_hat), windows});
  }
  return InBlocks(q.size(0), kQueryBlock, [&](int64_t begin, int64_t end) {
    return CacheBlock(q, k, v, k_hat, v_hat, rule, windows, begin, end);
  });
}

at::Tensor CausalAttentionFloat64(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionRule& rule) {
  const int64_t kv_heads = k.size(1);
  const int64_t group = q.size(1) / kv_heads;
  const int64_t tokens = q.size(0);
  const at::Tensor queries = GroupQueries(q.to(at::kDouble), kv_heads);
  const at::Tensor keys = k.to(at::kDouble).permute({1, 2, 0});    // [H_kv, D_k, T]
  const at::Tensor values = v.to(at::kDouble).permute({1, 0, 2});  // [H_kv, T, D_v]
  // Logits of a block take 8 H_q block T bytes: at most 64 MiB, at least 16 queries at a time.
  constexpr int64_t kLogitBytes = int64_t{64} << 20;
  const int64_t block = std::clamp<int64_t>(kLogitBytes / (8 * q.size(1) * tokens), 16, 256);
  return InBlocks(tokens, block, [&](int64_t begin, int64_t end) {
    const KeyRange range = {VisibleKeys(begin, rule.window).begin, end};
    at::Tensor mask = at::full({end - begin, range.size()}, kHidden, at::kFloat);
    for (int64_t i = begin; i < end; ++i) {
      Reveal(mask.data_ptr<float>() + (i - begin) * range.size(), range,
             VisibleKeys(i, rule.window));
    }
    const int64_t count = end - begin;
    at::Tensor logits =
        at::bmm(queries.narrow(2, begin, count).reshape({kv_heads, group * count, -1}),
                keys.narrow(2, range.begin, range.size()));
    logits.mul_(rule.scale);
    logits.view({kv_heads, group, count, range.size()}).add_(mask.to(logits.options()));
    const at::Tensor out =
        at::bmm(at::softmax(logits, -1), values.narrow(1, range.begin, range.size()));
    return out.view({kv_heads, group, count, -1})
        .permute({2, 0, 1, 3})
        .reshape({count, q.size(1), -1});
  });
}

}  // namespace oscar
