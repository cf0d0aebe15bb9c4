#include "oscar/verify/kernel_case.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/quant/matmul.h"
#include "oscar/quant/packing.h"

namespace oscar {
namespace {

DType TypeOf(ScaleType type) {
  switch (type) {
    case ScaleType::kF16:
      return DType::kF16;
    case ScaleType::kBF16:
      return DType::kBF16;
    case ScaleType::kF32:
      break;
  }
  return DType::kF32;
}

template <typename T>
void* Put(KernelBackend& backend, const std::vector<T>& x) {
  return backend.Put(x.data(), static_cast<int64_t>(x.size() * sizeof(T)));
}

template <typename T>
std::vector<T> Get(const KernelBackend& backend, const void* pointer, int64_t count) {
  std::vector<T> x(static_cast<size_t>(count));
  backend.Get(pointer, x.data(), count * static_cast<int64_t>(sizeof(T)));
  return x;
}

// One side's tensors in the backend's memory.
struct SideMemory {
  const BFloat16* source;
  const BFloat16* rotation;
  uint8_t* codes;
  void* scales;
  BFloat16* rows;
  BFloat16* rotated;
};

SideMemory Place(const KernelCase& c, const SideKernel& side, const std::vector<BFloat16>& rows,
                 KernelBackend& backend) {
  const CacheShape& cache = c.shape.cache;
  const auto bf16 = [](void* pointer) { return static_cast<BFloat16*>(pointer); };
  const int64_t row_bytes = cache.heads * cache.dim * 2;
  SideMemory m{};
  m.source = bf16(Put(backend, rows));
  m.rotation = side.rotation.empty() ? nullptr : bf16(Put(backend, side.rotation));
  const int64_t slots = c.batch->quantised_pool;
  m.codes = static_cast<uint8_t*>(backend.Allocate(slots * cache.heads * cache.CodeBytes()));
  m.scales = backend.Allocate(slots * cache.heads * cache.ScaleBytes());
  m.rows = bf16(backend.Allocate(c.batch->row_pool * row_bytes));
  m.rotated = bf16(backend.Allocate(c.batch->tokens() * row_bytes));
  return m;
}

WriteJob BaseJob(const KernelCase& c, const SideKernel& side, const SideMemory& memory) {
  WriteJob job;
  job.rows = memory.source;
  job.tokens = c.batch->tokens();
  job.heads = c.shape.cache.heads;
  job.rotation = memory.rotation;
  job.rotation_per_head = side.per_head;
  job.row_slot_offset = c.batch->quantised_pool;
  return job;
}

WriteJob QuantisedJob(const KernelCase& c, const SideKernel& side, const SideMemory& memory,
                      const void* slots) {
  WriteJob job = BaseJob(c, side, memory);
  job.slots = {slots, DType::kI32};
  job.codes = memory.codes;
  job.scales = memory.scales;
  job.clip_index = side.clip_index;
  job.clip_rule = side.clip_rule;
  return job;
}

WriteJob RowJob(const KernelCase& c, const SideKernel& side, const SideMemory& memory,
                const void* slots) {
  WriteJob job = BaseJob(c, side, memory);
  job.slots = {slots, DType::kI32};
  job.out_rows = memory.rows;
  return job;
}

// All rows, rotated, in the order of the tokens.
WriteJob OwnRowsJob(const KernelCase& c, const SideKernel& side, const SideMemory& memory) {
  WriteJob job = BaseJob(c, side, memory);
  job.out_rows = memory.rotated;
  return job;
}

// Queries take the rotation of the keys; a KV head's rotation serves its whole group.
WriteJob QueryJob(const KernelCase& c, const SideMemory& key, const void* q, void* rotated) {
  WriteJob job;
  job.rows = static_cast<const BFloat16*>(q);
  job.tokens = c.batch->requests();
  job.heads = c.shape.q_heads;
  job.rotation = key.rotation;
  job.rotation_per_head = c.key.per_head;
  job.heads_per_rotation = c.shape.GroupSize();
  job.out_rows = static_cast<BFloat16*>(rotated);
  return job;
}

KernelOutput::Side Fetch(const KernelCase& c, const SideMemory& memory,
                         const KernelBackend& backend) {
  const CacheShape& cache = c.shape.cache;
  const int64_t rows = c.batch->quantised_pool * cache.heads;
  const int64_t row = cache.heads * cache.dim;
  return {Get<uint8_t>(backend, memory.codes, rows * cache.CodeBytes()),
          Get<uint8_t>(backend, memory.scales, rows * cache.ScaleBytes()),
          Get<BFloat16>(backend, memory.rows, c.batch->row_pool * row),
          Get<BFloat16>(backend, memory.rotated, c.batch->tokens() * row)};
}

// Bytes that the write of the batch reads and writes.
int64_t WriteBytes(const KernelCase& c) {
  const CacheShape& cache = c.shape.cache;
  const PagedBatch& batch = *c.batch;
  const auto count = [](const std::vector<int32_t>& slots) {
    return static_cast<int64_t>(std::ranges::count_if(slots, [](int32_t s) { return s >= 0; }));
  };
  const int64_t quantised = count(batch.quantised_slot_of), rows = count(batch.row_slot_of);
  return quantised * (cache.RowTokenBytes() + cache.QuantisedTokenBytes()) +
         2 * rows * cache.RowTokenBytes() + batch.requests() * c.shape.q_heads * cache.dim * 4;
}

// Scales of constant rows may overflow half precision; what reads them takes its largest number.
float StoredScale(const uint8_t* scales, DType type, int64_t at) {
  const uint8_t* const from = scales + at * static_cast<int64_t>(DTypeSize(type));
  if (type == DType::kF32) {
    float x = 0;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  if (type == DType::kBF16) return ToFloat(BFloat16{bits});
  return std::clamp(ToFloat(Float16{bits}), -65504.0F, 65504.0F);
}

// (code - zero) scale of one row, in the cache's coordinates.
void Dequantise(const CacheShape& cache, const KernelOutput::Side& written, int64_t row,
                std::vector<uint8_t>& codes, float* x) {
  UnpackQuarters(written.codes.data() + row * cache.CodeBytes(), cache.dim, codes.data());
  const int64_t group = cache.dim / cache.groups;
  for (int64_t d = 0; d < cache.dim; ++d) {
    const int64_t at = (row * cache.groups + d / group) * 2;
    const float scale = StoredScale(written.scales.data(), cache.scale_type, at);
    const float zero = StoredScale(written.scales.data(), cache.scale_type, at + 1);
    x[d] = (static_cast<float>(codes[static_cast<size_t>(d)]) - zero) * scale;
  }
}

// The rotation of a head as float32.
std::vector<float> RotationOf(const SideKernel& side, int64_t dim, int64_t head) {
  std::vector<float> r(static_cast<size_t>(dim * dim));
  const BFloat16* const from = side.rotation.data() + (side.per_head ? head * dim * dim : 0);
  for (size_t i = 0; i < r.size(); ++i) r[i] = ToFloat(from[i]);
  return r;
}

}  // namespace

SideKernel KernelSideOf(const SideScheme& side, int64_t dim, int64_t kv_heads) {
  if (side.quantiser.bits == 2 && side.quantiser.codebook != Codebook::kMinMax) {
    throw Error(ErrorCode::kUnsupported, "the Lloyd-Max mode is not written by the kernels");
  }
  if (!side.transform.inverses.empty()) {
    throw Error(ErrorCode::kUnsupported, "the kernels rotate back by the transpose only");
  }
  SideKernel kernel;
  for (const std::vector<float>& matrix : side.transform.matrices) {
    OSCAR_CHECK(static_cast<int64_t>(matrix.size()) == dim * dim);
    for (const float x : matrix) kernel.rotation.push_back(ToBFloat16(x));
  }
  kernel.per_head = side.transform.matrices.size() > 1;
  OSCAR_CHECK(!kernel.per_head || static_cast<int64_t>(side.transform.matrices.size()) == kv_heads);
  if (side.quantiser.bits == 2) {
    kernel.clip_index = ClipIndexOf(side.quantiser.clip, dim);
    kernel.clip_rule = side.quantiser.clip_mode == ClipMode::kBisect ? ClipRule::kBisection
                                                                     : ClipRule::kOrderStatistic;
  }
  return kernel;
}

DecodeShape KernelShapeOf(const LayerShape& layer, const LayerScheme& scheme) {
  if (layer.k_dim != layer.v_dim) {
    throw Error(ErrorCode::kUnsupported,
                "head dims " + std::to_string(layer.k_dim) + " of keys and " +
                    std::to_string(layer.v_dim) +
                    " of values are not supported by the CUDA kernels, which take equal ones");
  }
  const QuantiserSpec& quantiser = scheme.key.quantiser;
  DecodeShape shape;
  shape.q_heads = layer.q_heads;
  shape.cache = {layer.kv_heads, layer.k_dim, 1, TypeOf(quantiser.scale_type)};
  if (quantiser.bits == 2 && quantiser.group_size > 0) {
    shape.cache.groups = layer.k_dim / quantiser.group_size;
  }
  CheckDecodeShape(shape);
  return shape;
}

KernelOutput RunKernels(const KernelCase& c, KernelBackend& backend, bool timed) {
  const PagedBatch& batch = *c.batch;
  const int64_t outputs = batch.requests() * c.shape.q_heads;
  const int64_t dim = c.shape.cache.dim;
  backend.Release();
  const SideMemory key = Place(c, c.key, *c.k, backend);
  const SideMemory value = Place(c, c.value, *c.v, backend);
  const void* const q = Put(backend, *c.q);
  void* const rotated_q = backend.Allocate(outputs * dim * 2);
  const void* const quantised_writes = Put(backend, batch.QuantisedWrites());
  const void* const row_writes = Put(backend, batch.RowWrites());
  std::vector<WriteJob> jobs;
  if (!batch.quantised_slots.empty()) {
    jobs.push_back(QuantisedJob(c, c.key, key, quantised_writes));
    jobs.push_back(QuantisedJob(c, c.value, value, quantised_writes));
  }
  if (!batch.row_slots.empty()) {
    jobs.push_back(RowJob(c, c.key, key, row_writes));
    jobs.push_back(RowJob(c, c.value, value, row_writes));
  }
  jobs.push_back(QueryJob(c, key, q, rotated_q));
  backend.Write(c.shape.cache, jobs);
  const WriteJob own[] = {OwnRowsJob(c, c.key, key), OwnRowsJob(c, c.value, value)};
  backend.Write(c.shape.cache, own);

  DecodeInputs in;
  in.q = static_cast<const BFloat16*>(rotated_q);
  in.quantised = {key.codes, value.codes, key.scales, value.scales, batch.quantised_pool};
  in.rows = {key.rows, value.rows, batch.row_pool};
  in.quantised_slots = {Put(backend, batch.quantised_slots), DType::kI32};
  in.row_slots = {Put(backend, batch.row_slots), DType::kI32};
  in.logit_scale = c.logit_scale;
  in.v_rotation = value.rotation;
  in.v_rotation_per_head = c.value.per_head;
  void* const o = backend.Allocate(outputs * dim * 4);
  void* const lse = backend.Allocate(outputs * 4);
  const DecodeOutputs out{o, DType::kF32, static_cast<float*>(lse)};
  backend.Decode(c.shape, batch.lengths, in, out);

  KernelOutput result;
  result.key = Fetch(c, key, backend);
  result.value = Fetch(c, value, backend);
  result.q = Get<BFloat16>(backend, rotated_q, outputs * dim);
  result.o = Get<float>(backend, o, outputs * dim);
  result.lse = Get<float>(backend, lse, outputs);
  if (timed) {
    result.write_ms = backend.TimeWrite(c.shape.cache, jobs);
    result.decode_ms = backend.TimeDecode(c.shape, batch.lengths, in, out);
    result.write_bytes = WriteBytes(c);
    result.decode_bytes = batch.ReadBytes(c.shape.cache);
  }
  backend.Release();
  return result;
}

TierRows ReadBack(const KernelCase& c, const SideKernel& side, const KernelOutput::Side& written,
                  size_t sequence, HeadRows<const float> exact, int threads) {
  const CacheShape& cache = c.shape.cache;
  const int64_t dim = cache.dim;
  const int64_t tokens = exact.tokens;
  const auto first = static_cast<size_t>(c.batch->token_begin[sequence]);
  TierRows rows;
  rows.quantised.assign(exact.data, exact.data + exact.size());
  rows.window = rows.quantised;
  ParallelFor(cache.heads, threads, [&](int64_t head) {
    // Both tiers' rows of the head in the cache's coordinates.
    std::vector<float> stored[2] = {std::vector<float>(static_cast<size_t>(tokens * dim)),
                                    std::vector<float>(static_cast<size_t>(tokens * dim))};
    std::vector<uint8_t> codes(static_cast<size_t>(dim));
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t quantised = c.batch->quantised_slot_of[first + static_cast<size_t>(token)];
      const int64_t slot = c.batch->row_slot_of[first + static_cast<size_t>(token)];
      float* const low = stored[0].data() + token * dim;
      float* const high = stored[1].data() + token * dim;
      if (slot >= 0) {
        const BFloat16* const from = written.rows.data() + (slot * cache.heads + head) * dim;
        for (int64_t d = 0; d < dim; ++d) low[d] = high[d] = ToFloat(from[d]);
      }
      if (quantised >= 0) {
        Dequantise(cache, written, quantised * cache.heads + head, codes, low);
      }
    }
    if (!side.rotation.empty()) {
      const std::vector<float> r = RotationOf(side, dim, head);
      for (std::vector<float>& tier : stored) {
        std::vector<float> back(tier.size());
        MultiplyTransposed(tokens, dim, dim, {tier.data(), dim}, {r.data(), dim},
                           {back.data(), dim});
        tier = std::move(back);
      }
    }
    for (int64_t token = 0; token < tokens; ++token) {
      const bool low = c.batch->quantised_slot_of[first + static_cast<size_t>(token)] >= 0;
      const bool high = c.batch->row_slot_of[first + static_cast<size_t>(token)] >= 0;
      const int64_t at = (token * cache.heads + head) * dim;
      if (low || high) std::copy_n(stored[0].data() + token * dim, dim, rows.quantised.data() + at);
      if (high) std::copy_n(stored[1].data() + token * dim, dim, rows.window.data() + at);
    }
  });
  return rows;
}

}  // namespace oscar
