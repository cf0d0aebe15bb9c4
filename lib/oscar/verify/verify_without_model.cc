// The model half in a build without LibTorch, or with it for the benchmark only.
#include "oscar/core/error.h"
#include "oscar/verify/verify.h"
#ifdef OSCAR_VERIFY_LIBTORCH
#include "oscar/model/backend.h"
#endif

namespace oscar {

struct ModelVerification::Impl {};

ModelVerification::ModelVerification(const ModelVerifyOptions& /*options*/,
                                     const TraceVerifyOptions& /*shared*/,
                                     const EntrySet& /*entries*/) {
  throw Error(ErrorCode::kUnsupported, "this build cannot run a model",
              "build with -DOSCAR_TORCH=ON -DOSCAR_KERNELS_ONLY=OFF, or verify on traces");
}
ModelVerification::~ModelVerification() = default;
void ModelVerification::Run(const RunContext& /*context*/, Verification& /*verification*/) const {}

std::vector<std::pair<std::string, std::string>> VerifyLibraries() {
#ifdef OSCAR_VERIFY_LIBTORCH
  return {{"LibTorch", LibTorchVersion()}};
#else
  return {};
#endif
}

}  // namespace oscar
