// Files that mean the same although their bytes differ, and files that do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "inspect/fits.h"
#include "oscar/core/error.h"
#include "oscar/inspect/inspect.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Diff : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = test::FreshFolder(std::string("diff_") + info->name());
    fit_ = test::FitMoment(test::RandomMoment(16, 3));
    context_.progress = &progress_;
  }
  ZooFile File(const test::Fit& fit, const std::string& composition = "r_h_pbr") const {
    return test::FileOf("qqt_" + composition, {{4, test::LayerFrom(fit, composition)}});
  }
  InspectReport Compare(const ZooFile& a, const ZooFile& b) {
    WriteZooFile(folder_ / "k_a.pt", a);
    WriteZooFile(folder_ / "k_b.pt", b);
    InspectOptions options;
    options.command = "diff";
    options.inputs = {folder_ / "k_a.pt", folder_ / "k_b.pt"};
    return RunInspect(options, context_);
  }
  std::string Verdict(const ZooFile& a, const ZooFile& b) {
    const InspectReport report = Compare(a, b);
    EXPECT_EQ(report.passed, report.record.At("verdict").AsString() != "different");
    // The order of the two does not matter.
    EXPECT_EQ(Compare(b, a).record.At("verdict"), report.record.At("verdict"));
    return report.record.At("verdict").AsString();
  }
  fs::path folder_;
  test::Fit fit_;
  NullProgress progress_;
  RunContext context_;
};

TEST_F(Diff, EqualAndRounded) {
  const ZooFile a = File(fit_);
  EXPECT_EQ(Verdict(a, a), "equal");
  ZooFile b = a;
  float& x = b.layers.at(4).rotation[5];
  x = std::nextafterf(x, 2);
  EXPECT_EQ(Verdict(a, b), "equal_within_rounding");
  for (float& entry : b.layers.at(4).rotation) entry = RoundToBFloat16(entry);
  EXPECT_EQ(Verdict(a, b), "equal_as_served");
}

TEST_F(Diff, PermutedAndNegatedColumns) {
  const ZooFile a = File(fit_);
  ZooFile b = a;
  std::vector<float>& r = b.layers.at(4).rotation;
  for (size_t row = 0; row < 16; ++row) {
    std::swap(r[row * 16 + 2], r[row * 16 + 9]);
    r[row * 16 + 5] = -r[row * 16 + 5];
  }
  EXPECT_EQ(Verdict(a, b), "equal_up_to_columns");
}

// Another public tool also calls its product r_h_pbr: descending eigenvectors times H with plain
// bit reversal. Its columns are those of the official file in other places with other signs.
TEST_F(Diff, TheOtherProductOfTheSameName) {
  const Eigen::Index dim = 16;
  Matrix h(dim, dim);
  for (Eigen::Index i = 0; i < dim; ++i) {
    for (Eigen::Index j = 0; j < dim; ++j) {
      h(i, j) = (std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1) / 4.0;
    }
  }
  const Matrix descending = fit_.basis.rowwise().reverse();
  const Matrix product = descending * h;
  Matrix other(dim, dim);
  for (Eigen::Index j = 0; j < dim; ++j) {
    const Eigen::Index reversed = (j & 1) << 3 | (j & 2) << 1 | (j & 4) >> 1 | (j & 8) >> 3;
    other.col(j) = product.col(reversed);
  }
  ZooFile b = File(fit_);
  const std::vector<float> before = b.layers.at(4).rotation;
  b.layers.at(4).rotation = test::Floats(other);
  EXPECT_EQ(Verdict(File(fit_), b), "equal_up_to_columns");
}

TEST_F(Diff, AnotherSolversSigns) {
  const ZooFile a = File(fit_);
  const ZooFile b = File(test::WithFlippedSigns(fit_, 5));
  EXPECT_EQ(Verdict(a, b), "same_calibration");
  // Also when one of the two is stored in another product.
  EXPECT_EQ(Verdict(a, File(fit_, "r_h")), "equal_up_to_columns");
  EXPECT_EQ(Verdict(a, File(fit_, "plain")), "same_calibration");
  // Without eigenvalues the eigenvectors themselves are compared.
  ZooFile c = a, d = b;
  c.layers.at(4).eigenvalues.clear();
  d.layers.at(4).eigenvalues.clear();
  EXPECT_EQ(Verdict(c, d), "same_calibration");
}

// Inside equal eigenvalues any orthonormal basis is as good as another.
TEST_F(Diff, AnotherBasisInsideEqualEigenvalues) {
  test::Fit tied = fit_;
  tied.eigenvalues[8] = tied.eigenvalues[7];
  test::Fit turned = tied;
  const Eigen::VectorXd x = tied.basis.col(7), y = tied.basis.col(8);
  turned.basis.col(7) = 0.6 * x + 0.8 * y;
  turned.basis.col(8) = -0.8 * x + 0.6 * y;
  EXPECT_EQ(Verdict(File(tied), File(turned)), "same_calibration");
  turned.eigenvalues = tied.eigenvalues = fit_.eigenvalues;
  EXPECT_EQ(Verdict(File(tied), File(turned)), "different");
}

TEST_F(Diff, Different) {
  const ZooFile a = File(fit_);
  EXPECT_EQ(Verdict(a, File(test::FitMoment(test::RandomMoment(16, 4)))), "different");
  ZooFile scaled = File(test::WithFlippedSigns(fit_, 5));
  for (float& x : scaled.layers.at(4).eigenvalues) x *= 1.001F;
  EXPECT_EQ(Verdict(a, scaled), "different");
  ZooFile other_target = File(test::WithFlippedSigns(fit_, 5));
  other_target.objective = "ktk_r_h_pbr";
  EXPECT_EQ(Verdict(a, other_target), "different");
  EXPECT_EQ(
      Verdict(a, test::FileOf(
                     "qqt_r_h_pbr",
                     {{4, test::LayerFrom(test::FitMoment(test::RandomMoment(8, 3)), "r_h_pbr")}})),
      "different");
  ZooFile more = a;
  more.layers[5] = a.layers.at(4);
  EXPECT_EQ(Verdict(a, more), "different");
  EXPECT_THAT(Compare(a, more).text, HasSubstr("only in the second: layers 5"));
}

TEST_F(Diff, MetadataIsListed) {
  ZooFile b = File(fit_);
  b.extra["calibration"]["tokens"] = 5;
  const InspectReport report = Compare(File(fit_), b);
  EXPECT_EQ(report.record.At("verdict").AsString(), "equal");
  EXPECT_THAT(report.text, HasSubstr("tokens"));
}

TEST_F(Diff, Folders) {
  const auto write = [&](const char* name, const ZooFile& key) {
    ZooFile value = File(fit_);
    value.objective = "sst_r_h_pbr";
    Value manifest;
    manifest["group_size"] = 16;
    manifest["volatile"]["time"] = name;
    WriteZooEntry(folder_ / name, key, value, "k_rotation.pt", "v_rotation.pt", manifest, false);
    return folder_ / name;
  };
  InspectOptions options;
  options.command = "diff";
  options.inputs = {write("a", File(fit_)), write("b", File(test::WithFlippedSigns(fit_, 1)))};
  const InspectReport report = RunInspect(options, context_);
  EXPECT_EQ(report.record.At("verdict").AsString(), "same_calibration");
  EXPECT_EQ(report.record.At("value").At("verdict").AsString(), "equal");
  EXPECT_TRUE(report.record.At("manifest").AsArray().empty());  // volatile parts do not count
  options.inputs[1] /= "k_rotation.pt";
  EXPECT_THROW(RunInspect(options, context_), Error);
}

}  // namespace
}  // namespace oscar
