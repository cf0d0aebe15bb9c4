#include "oscar/weights/fingerprint.h"

#include <cstdint>
#include <vector>

#include "oscar/core/hash.h"

namespace oscar {
namespace {

// Enough embedding rows that no two models of one configuration agree in all of them.
constexpr int64_t kFingerprintRows = 16;

}  // namespace

std::string WeightsFingerprint(const ModelWeights& model) {
  Sha256 hash;
  const std::vector<float> norm = model.FinalNorm();
  hash.Update(norm.data(), norm.size() * sizeof(float));
  std::vector<int32_t> ids;
  const int64_t vocab = model.config().vocab;
  for (int64_t i = 0; i < kFingerprintRows; ++i) {
    ids.push_back(static_cast<int32_t>(i * (vocab - 1) / (kFingerprintRows - 1)));
  }
  const std::vector<float> rows = model.EmbeddingRows(ids);
  hash.Update(rows.data(), rows.size() * sizeof(float));
  return hash.Hex();
}

}  // namespace oscar
