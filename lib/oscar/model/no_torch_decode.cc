// Benchmarks' part of LibTorch in a build without its CUDA part.
#include "oscar/core/error.h"
#include "oscar/model/torch_decode.h"

namespace oscar {
namespace {

[[noreturn]] void Absent() {
  throw Error(ErrorCode::kUnsupported, "this build has no CUDA part of LibTorch",
              "build with -DOSCAR_TORCH_CUDA=ON against a CUDA build of LibTorch");
}

}  // namespace

struct TorchDecoder::Impl {};

bool HasTorchDecode() { return false; }
void RunTorchAttention(TorchAttention /*kernel*/, const TorchAttentionCall& /*call*/,
                       void* /*stream*/) {
  Absent();
}
TorchDecoder::TorchDecoder(const DecoderSizes& /*sizes*/) { Absent(); }
TorchDecoder::~TorchDecoder() = default;
const void* TorchDecoder::q() const { Absent(); }
const void* TorchDecoder::kv() const { Absent(); }
void* TorchDecoder::attention_output() const { Absent(); }
void TorchDecoder::Before(int64_t /*layer*/, int64_t /*batch*/, bool /*products_only*/,
                          void* /*stream*/) {
  Absent();
}
void TorchDecoder::After(int64_t /*layer*/, int64_t /*batch*/, bool /*products_only*/,
                         void* /*stream*/) {
  Absent();
}
void TorchDecoder::Logits(int64_t /*batch*/, bool /*products_only*/, void* /*stream*/) { Absent(); }

}  // namespace oscar
