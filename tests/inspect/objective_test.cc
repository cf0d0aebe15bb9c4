// Recovering eigenvectors from rotations made by the toolkit's own producer.
#include "oscar/inspect/objective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "inspect/fits.h"

namespace oscar {
namespace {

TEST(Objective, NamesTargetAndComposition) {
  const auto parsed = [](const char* name, ZooSide side = ZooSide::kKey) {
    return ParseObjective(name, side);
  };
  EXPECT_EQ(parsed("qqt_r_h_pbr").target, Target::kQqt);
  EXPECT_EQ(parsed("qqt_r_h_pbr").composition, "r_h_pbr");
  EXPECT_EQ(parsed("svsv_plain").target, Target::kSvsv);
  EXPECT_EQ(parsed("hadamard").target, std::nullopt);
  EXPECT_EQ(parsed("hadamard").composition, "hadamard");
  EXPECT_EQ(parsed("cov_eig_hadamard_perhead").target, Target::kKtk);
  EXPECT_EQ(parsed("cov_eig_hadamard_perhead", ZooSide::kValue).target, Target::kVtv);
  for (const char* name : {"", "uresidual", "identity-k", "xyz_r_h_pbr", "qqt"}) {
    EXPECT_EQ(parsed(name).target, std::nullopt) << name;
  }
}

TEST(Objective, SideOfAFileOnItsOwn) {
  ZooFile file;
  file.objective = "sst_r_h_pbr";
  EXPECT_EQ(GuessSide(file, "k_x.pt"), ZooSide::kValue);
  file.objective = "cov_eig_hadamard_perhead";
  EXPECT_EQ(GuessSide(file, "a/v_perhead.pt"), ZooSide::kValue);
  EXPECT_EQ(GuessSide(file, "v_a/k_perhead.pt"), ZooSide::kKey);
}

// The product is undone exactly: H is its own inverse in float64 up to rounding of log2(D) steps.
TEST(Objective, EveryCompositionIsUndone) {
  for (const int64_t dim : {1, 2, 3, 6, 8, 16, 96, 100, 128}) {
    const test::Fit fit = test::FitMoment(test::RandomMoment(dim, 7));
    for (const CompositionInfo& row : CompositionTable()) {
      const Matrix rotation = Compose(row.id, fit.basis, fit.eigenvalues);
      const auto found = RecoverBasis(std::string(row.name), rotation);
      const bool contains_basis = row.formula.find('U') != std::string_view::npos;
      ASSERT_EQ(found.has_value(), contains_basis) << row.name;
      if (!found) continue;
      EXPECT_LE((*found - fit.basis).cwiseAbs().maxCoeff(), 1e-14 * std::log2(dim + 2))
          << row.name << " " << dim;
    }
  }
  EXPECT_FALSE(RecoverBasis("unknown", Matrix::Identity(2, 2)));
}

TEST(Objective, RotationOfTakesTheHead) {
  ZooLayer layer;
  layer.dim = 2;
  layer.heads = 2;
  layer.rotation = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(MatricesOf(layer), 2);
  EXPECT_EQ(RotationOf(layer, 1)(0, 1), 6);
  EXPECT_EQ(RotationOf(layer, 1)(1, 0), 7);
}

}  // namespace
}  // namespace oscar
