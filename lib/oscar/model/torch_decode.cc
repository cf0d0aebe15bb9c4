#include "oscar/model/torch_decode.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <optional>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/model/backend.h"
#include "oscar/model/torch_support.h"

namespace oscar {
namespace {

// ATen's work goes to `stream` while this lives.
class OnStream {
 public:
  OnStream(void* stream, int device)
      : guard_(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream),
                                                static_cast<c10::DeviceIndex>(device))) {}

 private:
  c10::cuda::CUDAStreamGuard guard_;
};

at::TensorOptions OnDevice(int device) {
  return at::TensorOptions()
      .dtype(at::kBFloat16)
      .device(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

at::Tensor Borrow(const void* data, at::IntArrayRef shape, int device) {
  // ATen has no read-only tensors; none of these is written to.
  void* memory = const_cast<void*>(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return at::from_blob(memory, shape, OnDevice(device));
}

// The operator got two parameters more after LibTorch 2.4. A template, so that only the form that
// the headers have is compiled.
template <typename Tensor>
void CudnnAttention(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const std::optional<at::Tensor> bias;
  if constexpr (requires {
                  at::_scaled_dot_product_cudnn_attention(q, k, v, bias, false, 0.0, false, false,
                                                          scale);
                }) {
    at::_scaled_dot_product_cudnn_attention(q, k, v, bias, false, 0.0, false, false, scale);
  } else {
    at::_scaled_dot_product_cudnn_attention(q, k, v, 0.0, false, false, scale);
  }
}

}  // namespace

bool HasTorchDecode() { return CudaAvailable(); }

void RunTorchAttention(TorchAttention kernel, const TorchAttentionCall& call, void* stream) {
  const c10::InferenceMode inference;
  const OnStream on(stream, call.device);
  // The query heads of a KV head are positions of one head to the flash kernel, which reads keys
  // and values once for them; cuDNN's is made for one position and reads them once for several
  // heads.
  const bool flash = kernel == TorchAttention::kFlash;
  const int64_t heads = flash ? call.kv_heads : call.q_heads;
  try {
    const at::Tensor q =
        Borrow(call.q, {call.batch, heads, call.q_heads / heads, call.dim}, call.device);
    const at::Tensor k =
        Borrow(call.k, {call.batch, call.kv_heads, call.tokens, call.dim}, call.device);
    const at::Tensor v =
        Borrow(call.v, {call.batch, call.kv_heads, call.tokens, call.dim}, call.device);
    const auto scale = static_cast<double>(call.logit_scale);
    if (flash) {
      at::_scaled_dot_product_flash_attention(q, k, v, 0.0, false, false, scale);
    } else {
      CudnnAttention(q, k, v, scale);
    }
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(ErrorCode::kUnsupported, "PyTorch attention: " + text.substr(0, text.find('\n')));
  }
}

struct TorchDecoder::Impl {
  struct Weights {
    at::Tensor norm, q, kv, o, post_norm, gate_up, down;
  };

  explicit Impl(const DecoderSizes& s) : sizes(s) {
    for (int64_t i = 0; i < s.weight_sets; ++i) {
      weights.push_back({Ones(s.hidden), Random(s.q_width, s.hidden),
                         Random(2 * s.kv_width, s.hidden), Random(s.hidden, s.q_width),
                         Ones(s.hidden), Random(2 * s.intermediate, s.hidden),
                         Random(s.hidden, s.intermediate)});
    }
    head = Random(s.vocabulary, s.hidden);
    final_norm = Ones(s.hidden);
    const auto rows = [&](int64_t width) {
      return at::empty({s.max_batch, width}, OnDevice(s.device)).normal_();
    };
    residual = rows(s.hidden);
    normed = rows(s.hidden);
    q = rows(s.q_width);
    kv = rows(2 * s.kv_width);
    attention = rows(s.q_width);
    gate_up = rows(2 * s.intermediate);
    gate = rows(s.intermediate);
    logits = rows(s.vocabulary);
  }

  at::Tensor Ones(int64_t width) const { return at::ones({width}, OnDevice(sizes.device)); }
  // [out, in], as checkpoints store it; outputs keep the size of inputs.
  at::Tensor Random(int64_t out, int64_t in) const {
    return at::empty({out, in}, OnDevice(sizes.device))
        .normal_(0, 1 / std::sqrt(static_cast<double>(in)));
  }
  const Weights& Of(int64_t layer) const {
    return weights[static_cast<size_t>(layer % sizes.weight_sets)];
  }
  at::Tensor Normed(const at::Tensor& weight, int64_t batch, bool products_only) const {
    if (products_only) return normed.narrow(0, 0, batch);
    return at::rms_norm(residual.narrow(0, 0, batch), {sizes.hidden}, weight, 1e-6);
  }

  DecoderSizes sizes;
  std::vector<Weights> weights;
  at::Tensor head, final_norm;
  at::Tensor residual, normed, q, kv, attention, gate_up, gate, logits;
};

TorchDecoder::TorchDecoder(const DecoderSizes& sizes) {
  GuardTorch("decoder weights", [&] { impl_ = std::make_unique<Impl>(sizes); });
}
TorchDecoder::~TorchDecoder() = default;

const void* TorchDecoder::q() const { return impl_->q.const_data_ptr(); }
const void* TorchDecoder::kv() const { return impl_->kv.const_data_ptr(); }
void* TorchDecoder::attention_output() const { return impl_->attention.data_ptr(); }

void TorchDecoder::Before(int64_t layer, int64_t batch, bool products_only, void* stream) {
  GuardTorch("projections", [&] {
    const OnStream on(stream, impl_->sizes.device);
    const Impl::Weights& w = impl_->Of(layer);
    const at::Tensor x = impl_->Normed(w.norm, batch, products_only);
    at::Tensor q = impl_->q.narrow(0, 0, batch), kv = impl_->kv.narrow(0, 0, batch);
    at::mm_out(q, x, w.q.t());
    at::mm_out(kv, x, w.kv.t());
  });
}

void TorchDecoder::After(int64_t layer, int64_t batch, bool products_only, void* stream) {
  GuardTorch("feed-forward", [&] {
    const OnStream on(stream, impl_->sizes.device);
    const Impl::Weights& w = impl_->Of(layer);
    const int64_t width = impl_->sizes.intermediate;
    at::Tensor residual = impl_->residual.narrow(0, 0, batch);
    at::Tensor gate_up = impl_->gate_up.narrow(0, 0, batch);
    at::Tensor gate = impl_->gate.narrow(0, 0, batch);
    // The residual is added within the product.
    at::addmm_out(residual, residual, impl_->attention.narrow(0, 0, batch), w.o.t());
    at::mm_out(gate_up, impl_->Normed(w.post_norm, batch, products_only), w.gate_up.t());
    if (!products_only) {
      at::silu_out(gate, gate_up.narrow(1, 0, width));
      gate.mul_(gate_up.narrow(1, width, width));
    }
    at::addmm_out(residual, residual, gate, w.down.t());
  });
}

void TorchDecoder::Logits(int64_t batch, bool products_only, void* stream) {
  GuardTorch("logits", [&] {
    const OnStream on(stream, impl_->sizes.device);
    at::Tensor logits = impl_->logits.narrow(0, 0, batch);
    at::mm_out(logits, impl_->Normed(impl_->final_norm, batch, products_only), impl_->head.t());
  });
}

}  // namespace oscar
