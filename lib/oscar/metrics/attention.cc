#include "oscar/metrics/attention.h"

#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/metrics/attention_parts.h"
#include "oscar/metrics/row_kernels.h"

namespace oscar {
namespace {

// Rows of a block: enough to reuse packed keys, few enough for their logits to stay in cache.
constexpr int64_t kRowsPerBlock = 48;
constexpr int64_t kKeysPerChunk = 256;
constexpr int64_t kQueriesPerProjection = 16;

int64_t QueriesPerBlock(const LayerShape& shape) {
  return std::max<int64_t>(1, kRowsPerBlock / shape.group());
}

int64_t BlocksPerHead(const LayerShape& shape, std::span<const int64_t> queries) {
  const int64_t per_block = QueriesPerBlock(shape);
  return (static_cast<int64_t>(queries.size()) + per_block - 1) / per_block;
}

}  // namespace

int64_t QueryBlockCount(const LayerShape& shape, std::span<const int64_t> queries) {
  return shape.kv_heads * BlocksPerHead(shape, queries);
}

QueryBlock QueryBlockAt(const LayerShape& shape, std::span<const int64_t> queries, int64_t task) {
  QueryBlock block;
  block.head = task % shape.kv_heads;
  // Long rows first, so that the last task to be handed out is a short one.
  block.first =
      (BlocksPerHead(shape, queries) - 1 - task / shape.kv_heads) * QueriesPerBlock(shape);
  block.last = std::min(static_cast<int64_t>(queries.size()), block.first + QueriesPerBlock(shape));
  block.keys = {VisibleKeys(shape, queries[static_cast<size_t>(block.first)]).begin,
                queries[static_cast<size_t>(block.last - 1)] + 1};
  return block;
}

void AddWeightedValues(const BlockWeights& weights, Strided<const float> values, int64_t dim,
                       std::vector<double>& out) {
  const auto rows = static_cast<int64_t>(weights.row_end.size());
  const int64_t width = weights.keys.size();
  std::vector<float> part(static_cast<size_t>(rows * dim));
  for (int64_t begin = weights.keys.begin; begin < weights.keys.end; begin += kKeysPerChunk) {
    const int64_t end = std::min(weights.keys.end, begin + kKeysPerChunk);
    const int64_t first = std::upper_bound(weights.row_end.begin(), weights.row_end.end(), begin) -
                          weights.row_end.begin();
    if (first == rows) return;
    const float* const corner = weights.data.data() + first * width + (begin - weights.keys.begin);
    Multiply(rows - first, dim, end - begin, {corner, width},
             {values.data + begin * values.stride, values.stride}, {part.data(), dim});
    double* const sums = out.data() + first * dim;
    for (int64_t i = 0; i < (rows - first) * dim; ++i) {
      sums[i] += static_cast<double>(part[static_cast<size_t>(i)]);
    }
  }
}

AttentionReference::AttentionReference(const LayerShape& shape, HeadRows<const float> q,
                                       HeadRows<const float> k, HeadRows<const float> v,
                                       std::span<const int64_t> queries, int threads,
                                       std::span<const float> o_proj)
    : shape_(shape),
      q_(q),
      k_(k),
      v_(v),
      o_proj_(o_proj),
      queries_(queries.begin(), queries.end()) {
  OSCAR_CHECK(q.heads == shape.q_heads && k.heads == shape.kv_heads && v.heads == shape.kv_heads);
  OSCAR_CHECK(shape.kv_heads > 0 && shape.q_heads % shape.kv_heads == 0);
  OSCAR_CHECK(q.dim == k.dim && q.tokens == k.tokens && k.tokens == v.tokens);
  OSCAR_CHECK(std::ranges::is_sorted(queries_));
  OSCAR_CHECK(queries_.empty() || (queries_.front() >= 0 && queries_.back() < q.tokens));
  OSCAR_CHECK(o_proj.size() % static_cast<size_t>(shape.q_heads * v.dim) == 0);
  const int64_t group = shape_.group();
  const auto count = static_cast<int64_t>(queries_.size());
  for (const int64_t query : queries_) {
    logit_offsets_.push_back(logits_per_head_);
    logits_per_head_ += group * VisibleKeys(shape_, query).size();
  }
  logits_.resize(static_cast<size_t>(shape_.kv_heads * logits_per_head_));
  log_sums_.resize(static_cast<size_t>(shape_.kv_heads * count * group));
  scaled_q_.resize(log_sums_.size() * static_cast<size_t>(q.dim));
  outputs_.resize(log_sums_.size() * static_cast<size_t>(v.dim));
  ParallelFor(QueryBlockCount(shape_, queries_), threads,
              [&](int64_t task) { FillBlock(QueryBlockAt(shape_, queries_, task)); });
  for (const double x : outputs_) output_energy_ += x * x;
  if (!o_proj_.empty()) {
    projected_energy_ =
        ProjectedEnergy(std::vector<float>(outputs_.begin(), outputs_.end()), threads);
  }
}

void AttentionReference::FillBlock(const QueryBlock& block) {
  const RowKernels& kernels = ChosenRowKernels();
  const int64_t group = shape_.group();
  const auto count = static_cast<int64_t>(queries_.size());
  const int64_t rows = (block.last - block.first) * group;
  const int64_t width = block.keys.size();
  const int64_t first_row = (block.head * count + block.first) * group;
  float* const q_rows = scaled_q_.data() + first_row * q_.dim;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t query = queries_[static_cast<size_t>(block.first + r / group)];
    const float* const from = q_.At(query, block.head * group + r % group);
    for (int64_t d = 0; d < q_.dim; ++d) {
      q_rows[r * q_.dim + d] =
          static_cast<float>(static_cast<double>(from[d]) * shape_.softmax_scale);
    }
  }
  BlockWeights weights{block.keys, std::vector<float>(static_cast<size_t>(rows * width)), {}};
  MultiplyTransposed(rows, width, q_.dim, {q_rows, q_.dim},
                     {k_.At(block.keys.begin, block.head), k_.heads * k_.dim},
                     {weights.data.data(), width});
  std::vector<double> p(static_cast<size_t>(width));
  std::vector<double> unused(p.size());
  const std::vector<float> no_change(p.size(), 0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t index = block.first + r / group;
    const KeyRange visible = VisibleKeys(shape_, queries_[static_cast<size_t>(index)]);
    const int64_t n = visible.size();
    float* const row = weights.data.data() + r * width;
    float* const logits = logits_.data() + block.head * logits_per_head_ +
                          logit_offsets_[static_cast<size_t>(index)] + r % group * n;
    std::copy_n(row + (visible.begin - block.keys.begin), n, logits);
    const auto shift = static_cast<double>(*std::max_element(logits, logits + n));
    const double log_sum = shift + std::log(kernels.sum_exp(logits, n, shift));
    log_sums_[static_cast<size_t>(first_row + r)] = log_sum;
    kernels.exponentials(logits, no_change.data(), n, log_sum, 0, p.data(), unused.data());
    std::fill_n(row, width, 0.0F);
    std::copy_n(p.data(), n, row + (visible.begin - block.keys.begin));
    weights.row_end.push_back(visible.end);
  }
  std::vector<double> out(static_cast<size_t>(rows * v_.dim), 0.0);
  AddWeightedValues(weights, {v_.At(0, block.head), v_.heads * v_.dim}, v_.dim, out);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t index = block.first + r / group;
    std::copy_n(
        out.data() + r * v_.dim, v_.dim,
        outputs_.data() + (index * shape_.q_heads + block.head * group + r % group) * v_.dim);
  }
}

ErrorRatio AttentionReference::OutputError(std::span<const float> outputs) const {
  OSCAR_CHECK(outputs.size() == outputs_.size());
  ErrorRatio error{0, output_energy_};
  for (size_t i = 0; i < outputs.size(); ++i) {
    const double d = static_cast<double>(outputs[i]) - outputs_[i];
    error.numerator += d * d;
  }
  return error;
}

ErrorRatio AttentionReference::ProjectedOutputError(std::span<const float> outputs,
                                                    int threads) const {
  OSCAR_CHECK(outputs.size() == outputs_.size());
  if (o_proj_.empty()) return {};
  std::vector<float> change(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    change[i] = static_cast<float>(static_cast<double>(outputs[i]) - outputs_[i]);
  }
  return {ProjectedEnergy(change, threads), projected_energy_};
}

double AttentionReference::LogSum(int64_t query, int64_t q_head) const {
  const int64_t group = shape_.group();
  const auto count = static_cast<int64_t>(queries_.size());
  return log_sums_.at(
      static_cast<size_t>((q_head / group * count + query) * group + q_head % group));
}

double AttentionReference::ProjectedEnergy(const std::vector<float>& rows, int threads) const {
  const int64_t width = shape_.q_heads * v_.dim;
  const auto hidden = static_cast<int64_t>(o_proj_.size()) / width;
  const auto count = static_cast<int64_t>(queries_.size());
  const int64_t tasks = (count + kQueriesPerProjection - 1) / kQueriesPerProjection;
  std::vector<double> energies(static_cast<size_t>(tasks));
  ParallelFor(tasks, threads, [&](int64_t task) {
    const int64_t begin = task * kQueriesPerProjection;
    const int64_t n = std::min(count - begin, kQueriesPerProjection);
    std::vector<float> projected(static_cast<size_t>(n * hidden));
    MultiplyTransposed(n, hidden, width, {rows.data() + begin * width, width},
                       {o_proj_.data(), width}, {projected.data(), hidden});
    double energy = 0;
    for (const float x : projected) energy += static_cast<double>(x) * static_cast<double>(x);
    energies[static_cast<size_t>(task)] = energy;
  });
  double total = 0;
  for (const double energy : energies) total += energy;
  return total;
}

}  // namespace oscar
