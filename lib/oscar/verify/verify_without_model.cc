// The model half in a build without LibTorch.
#include "oscar/core/error.h"
#include "oscar/verify/verify.h"

namespace oscar {

struct ModelVerification::Impl {};

ModelVerification::ModelVerification(const ModelVerifyOptions& /*options*/,
                                     const TraceVerifyOptions& /*shared*/,
                                     const EntrySet& /*entries*/) {
  throw Error(ErrorCode::kUnsupported, "this build has no LibTorch, so it cannot run a model",
              "build with -DOSCAR_TORCH=ON, or verify on traces");
}
ModelVerification::~ModelVerification() = default;
void ModelVerification::Run(const RunContext& /*context*/, Verification& /*verification*/) const {}

std::vector<std::pair<std::string, std::string>> VerifyLibraries() { return {}; }

}  // namespace oscar
