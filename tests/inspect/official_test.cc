// Eigenvectors recovered from the official script's files against those its solver returned.
#include <gtest/gtest.h>

#include <filesystem>

#include "oscar/inspect/objective.h"
#include "support/golden.h"
#include "support/hdf5_reader.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Reference U [D, D] in float64, or an empty matrix when the case does not store it.
Matrix ReferenceBasis(const test::Hdf5Reader& file, const std::string& group, int64_t dim) {
  if (!file.Has(group) || !file.Has(group + "/U")) return {};
  const auto data = file.Read<double>(group + "/U");
  if (data.shape != std::vector<int64_t>{dim, dim}) return {};
  return Eigen::Map<const Matrix>(data.data.data(), dim, dim);
}

TEST(OfficialFiles, EigenvectorsAreRecovered) {
  int compared = 0;
  for (const auto& folder : fs::directory_iterator(test::OfficialVectors() / "calibration")) {
    if (!fs::exists(folder.path() / "expected.h5")) continue;
    const test::Hdf5Reader expected(folder.path() / "expected.h5");
    for (const auto& entry : fs::directory_iterator(folder.path() / "official")) {
      if (entry.path().extension() != ".pt") continue;
      const ZooFile file = ReadZooFile(entry.path());
      const bool is_key = entry.path().filename().string().starts_with("k_");
      const Objective objective =
          ParseObjective(file.objective, is_key ? ZooSide::kKey : ZooSide::kValue);
      // expected.h5 holds U of the main run's targets.
      if (objective.target != (is_key ? Target::kQqt : Target::kSst)) continue;
      for (const auto& [id, layer] : file.layers) {
        const auto basis = RecoverBasis(objective.composition, RotationOf(layer, 0));
        if (!basis) continue;
        const std::string group = "layer_" + std::to_string(id) + (is_key ? "/k" : "/v");
        const Matrix reference = ReferenceBasis(expected, group, layer.dim);
        if (reference.size() == 0) continue;
        ++compared;
        // R is rounded to float32 entry by entry; H and the permutations are orthogonal, so the
        // error of U has the Frobenius norm of that of R: at most 2^-24 |R|_F. U itself may be
        // stored in float32, which adds as much.
        EXPECT_LE((*basis - reference).norm(), 2 * 0x1p-24 * std::sqrt(layer.dim) + 1e-13)
            << entry.path() << " layer " << id;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace oscar
