// PyTorch's attention and matrix products on device memory that others own, for benchmarks: raw
// pointers and a stream in, no LibTorch types. Only a build with OSCAR_TORCH_CUDA and the CUDA
// toolkit has them; in others HasTorchDecode() is false and the rest throws Error(kUnsupported).
#pragma once

#include <cstdint>
#include <memory>

namespace oscar {

// True when the functions below work: this build has them and LibTorch sees a device.
bool HasTorchDecode();

enum class TorchAttention { kFlash, kCudnn };

// Decode attention over a contiguous bf16 cache, in the form that each kernel reads keys and values
// once for all query heads of a KV head in: as positions of one head (flash), as heads (cuDNN).
struct TorchAttentionCall {
  int64_t batch = 0, q_heads = 0, kv_heads = 0, dim = 0, tokens = 0;
  const void* q = nullptr;  // [batch, q_heads, dim]
  const void* k = nullptr;  // [batch, kv_heads, tokens, dim]
  const void* v = nullptr;
  float logit_scale = 1;
  int device = 0;
};

// Runs it on `stream` (a cudaStream_t); the result is dropped. May allocate from LibTorch's cache:
// run it once before a graph capture on the same stream. Throws Error(kUnsupported) with ATen's
// reason when that kernel does not take the case.
void RunTorchAttention(TorchAttention kernel, const TorchAttentionCall& call, void* stream);

// Everything of a dense decoder step but attention, at random bf16 weights: RMS norms, projections,
// SiLU feed-forward with its residuals, and the logits. Position embedding and query/key norms,
// which engines fuse with the cache write, are left out.
struct DecoderSizes {
  int64_t hidden = 0, q_width = 0, kv_width = 0, intermediate = 0, vocabulary = 0;
  int64_t weight_sets = 1;  // layers use these sets of weights in turn
  int64_t max_batch = 1;
  int device = 0;
};

class TorchDecoder {
 public:
  explicit TorchDecoder(const DecoderSizes& sizes);
  ~TorchDecoder();

  // Results of the projections of the last Before(): q [batch, q_width], and k and v side by side,
  // [batch, 2 * kv_width]. All bf16.
  const void* q() const;
  const void* kv() const;
  // Where attention puts its output, bf16 [batch, q_width].
  void* attention_output() const;

  // The part of a layer before and after attention, and the end of the step. With `products_only`
  // the element-wise operations are left out. `batch` up to max_batch.
  void Before(int64_t layer, int64_t batch, bool products_only, void* stream);
  void After(int64_t layer, int64_t batch, bool products_only, void* stream);
  void Logits(int64_t batch, bool products_only, void* stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
