#include "oscar/verify/kernel_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/cuda/twin.h"
#include "oscar/quant/matmul.h"

namespace oscar {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kRowsPerTask = 1024;

template <typename T>
int64_t Differences(const std::vector<T>& a, const std::vector<T>& b) {
  OSCAR_CHECK(a.size() == b.size());
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// What the twin writes of the kernel's own rows, against what the kernel wrote.
int64_t WrongBytes(const KernelCase& c, const SideKernel& side, const KernelOutput::Side& out,
                   int threads) {
  const PagedBatch& batch = *c.batch;
  const CacheShape& cache = c.shape.cache;
  std::vector<uint8_t> codes(out.codes.size(), 0xff), scales(out.scales.size(), 0xff);
  std::vector<BFloat16> rows(out.rows.size(), BFloat16{0xffff});
  const std::vector<int32_t> quantised = batch.QuantisedWrites(), kept = batch.RowWrites();
  const int64_t row = cache.heads * cache.dim;
  ParallelFor((batch.tokens() + kRowsPerTask - 1) / kRowsPerTask, threads, [&](int64_t task) {
    const int64_t begin = task * kRowsPerTask;
    WriteJob job;
    job.rows = out.rotated.data() + begin * row;
    job.tokens = std::min(kRowsPerTask, batch.tokens() - begin);
    job.heads = cache.heads;
    job.row_slot_offset = batch.quantised_pool;
    WriteJob jobs[2] = {job, job};
    jobs[0].slots = {quantised.data() + begin, DType::kI32};
    jobs[0].codes = codes.data();
    jobs[0].scales = scales.data();
    jobs[0].clip_index = side.clip_index;
    jobs[0].clip_rule = side.clip_rule;
    jobs[1].slots = {kept.data() + begin, DType::kI32};
    jobs[1].out_rows = rows.data();
    WriteTwin(cache, jobs);
  });
  int64_t wrong = Differences(codes, out.codes) + Differences(scales, out.scales);
  for (size_t i = 0; i < rows.size(); ++i) wrong += rows[i].bits != out.rows[i].bits ? 2 : 0;
  return wrong;
}

// Largest Euclidean norm of a column: |sum of |x_d R_dj|| is at most |x| times it.
double LargestColumn(const float* r, int64_t dim) {
  double largest = 0;
  for (int64_t j = 0; j < dim; ++j) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      sum += static_cast<double>(r[d * dim + j]) * static_cast<double>(r[d * dim + j]);
    }
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

// Rotated rows of `heads` heads against x R in float32 sums of another order. Both sums are within
// D 2^-24 sum |x_d R_dj| <= D 2^-24 |x| |R_j| of the exact one, tensor cores (which truncate)
// within four times that; rounding to bfloat16 adds 2^-8 of the result.
double RowError(const std::vector<BFloat16>& x, const std::vector<BFloat16>& rotated,
                const SideKernel& side, int64_t heads, int64_t heads_per_rotation, int64_t dim,
                int threads) {
  if (side.rotation.empty()) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].bits != rotated[i].bits) return kInfinity;
    }
    return 0;
  }
  const int64_t tokens = static_cast<int64_t>(x.size()) / (heads * dim);
  std::vector<double> worst(static_cast<size_t>(heads), 0.0);
  ParallelFor(heads, threads, [&](int64_t head) {
    const int64_t matrix = side.per_head ? head / heads_per_rotation : 0;
    std::vector<float> r, rows, expected(static_cast<size_t>(tokens * dim));
    for (int64_t i = 0; i < dim * dim; ++i) {
      r.push_back(ToFloat(side.rotation[static_cast<size_t>(matrix * dim * dim + i)]));
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        rows.push_back(ToFloat(x[static_cast<size_t>((t * heads + head) * dim + d)]));
      }
    }
    Multiply(tokens, dim, dim, {rows.data(), dim}, {r.data(), dim}, {expected.data(), dim});
    const double column = LargestColumn(r.data(), dim);
    for (int64_t t = 0; t < tokens; ++t) {
      double norm = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const auto value = static_cast<double>(rows[static_cast<size_t>(t * dim + d)]);
        norm += value * value;
      }
      const double sums = 5 * static_cast<double>(dim) * 0x1p-24 * std::sqrt(norm) * column;
      for (int64_t d = 0; d < dim; ++d) {
        const auto exact = static_cast<double>(expected[static_cast<size_t>(t * dim + d)]);
        const auto found = static_cast<double>(
            ToFloat(rotated[static_cast<size_t>((t * heads + head) * dim + d)]));
        const double distance = std::abs(found - exact);
        const double allowed = 0x1p-8 * std::abs(exact) + sums;
        const double ratio = distance == 0 ? 0 : distance / allowed;
        double& largest = worst[static_cast<size_t>(head)];
        if (!(ratio <= largest)) largest = std::isnan(ratio) ? kInfinity : ratio;
      }
    }
  });
  return *std::ranges::max_element(worst);
}

// Requests of the batch that are checked.
std::vector<int64_t> CheckedRequests(const PagedBatch& batch) {
  std::vector<int64_t> chosen;
  for (size_t s = 0; s + 1 < batch.request_begin.size(); ++s) {
    const int64_t begin = batch.request_begin[s];
    const int64_t count = batch.request_begin[s + 1] - begin;
    const int64_t take = std::min(count, kCheckedRequests);
    for (int64_t i = 1; i <= take; ++i) chosen.push_back(begin + i * count / take - 1);
  }
  return chosen;
}

// The decode inputs on the kernel's own bytes, as host pointers.
DecodeInputs HostInputs(const KernelCase& c, const KernelOutput& out) {
  DecodeInputs in;
  in.q = out.q.data();
  // The reference only reads.
  auto* const k = const_cast<KernelOutput::Side*>(&out.key);    // NOLINT
  auto* const v = const_cast<KernelOutput::Side*>(&out.value);  // NOLINT
  in.quantised = {k->codes.data(), v->codes.data(), k->scales.data(), v->scales.data(),
                  c.batch->quantised_pool};
  in.rows = {k->rows.data(), v->rows.data(), c.batch->row_pool};
  in.quantised_slots = {c.batch->quantised_slots.data(), DType::kI32};
  in.row_slots = {c.batch->row_slots.data(), DType::kI32};
  in.logit_scale = c.logit_scale;
  in.v_rotation = c.value.rotation.empty() ? nullptr : c.value.rotation.data();
  in.v_rotation_per_head = c.value.per_head;
  return in;
}

void CheckDecode(const KernelCase& c, const KernelOutput& out, int threads, KernelAgreement& a) {
  const std::vector<int64_t> chosen = CheckedRequests(*c.batch);
  std::vector<bool> wanted(c.batch->lengths.size());
  for (const int64_t r : chosen) wanted[static_cast<size_t>(r)] = true;
  std::vector<float> o(out.o.size()), lse(out.lse.size());
  ForEachRequest(
      c.shape, c.batch->lengths, HostInputs(c, out), {o.data(), DType::kF32, lse.data()}, threads,
      [&](std::span<const RequestLengths> one, const DecodeInputs& in, const DecodeOutputs& to) {
        const auto request = static_cast<size_t>(one.data() - c.batch->lengths.data());
        if (wanted[request]) DecodeReference(c.shape, one, in, to);
      });
  double difference = 0, norm = 0;
  const auto width = static_cast<size_t>(c.shape.q_heads * c.shape.cache.dim);
  const auto heads = static_cast<size_t>(c.shape.q_heads);
  for (const int64_t request : chosen) {
    const auto r = static_cast<size_t>(request);
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      const double d = static_cast<double>(out.o[i]) - static_cast<double>(o[i]);
      difference += d * d;
      norm += static_cast<double>(o[i]) * static_cast<double>(o[i]);
    }
    for (size_t i = r * heads; i < (r + 1) * heads; ++i) {
      const auto exact = static_cast<double>(lse[i]);
      const double d =
          std::abs(static_cast<double>(out.lse[i]) - exact) - 0x1p-21 * std::abs(exact);
      a.lse_error = std::isnan(d) ? kInfinity : std::max(a.lse_error, d);
    }
  }
  a.output_error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  if (std::isnan(a.output_error)) a.output_error = kInfinity;
}

}  // namespace

KernelAgreement CheckAgreement(const KernelCase& c, const KernelOutput& out, int threads) {
  KernelAgreement a;
  const DecodeShape& shape = c.shape;
  const int64_t dim = shape.cache.dim;
  a.wrong_bytes =
      WrongBytes(c, c.key, out.key, threads) + WrongBytes(c, c.value, out.value, threads);
  a.row_error =
      std::max({RowError(*c.k, out.key.rotated, c.key, shape.cache.heads, 1, dim, threads),
                RowError(*c.v, out.value.rotated, c.value, shape.cache.heads, 1, dim, threads),
                RowError(*c.q, out.q, c.key, shape.q_heads, shape.GroupSize(), dim, threads)});
  CheckDecode(c, out, threads, a);
  return a;
}

}  // namespace oscar
