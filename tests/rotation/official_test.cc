// Parity with the official program on every case found in official_vectors/calibration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "oscar/core/error.h"
#include "oscar/core/hadamard.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/permutation.h"
#include "oscar/rotation/composition.h"
#include "oscar/rotation/fit.h"
#include "support/official_case.h"
#include "support/official_compare.h"

namespace oscar {
namespace {

using test::CompareRotation;
using test::CompareSymmetric;
using test::Comparison;
using test::kCovariance;
using test::kEigenvalue;
using test::kEps;
using test::kFloatUlp;
using test::MatchColumns;
using test::OfficialCase;
using test::OfficialCaseFolders;
using test::ReadMatrix;
using test::Subject;

// R from the official eigenvectors, whose signs are exact: equal up to rounding.
void CompareComposition(const std::string& name, Composition composition, const Matrix& basis,
                        bool basis_is_float, const std::vector<double>& eigenvalues,
                        const Matrix& theirs_rows) {
  const Matrix ours = Compose(composition, basis, eigenvalues).topRows(theirs_rows.rows());
  for (Eigen::Index i = 0; i < theirs_rows.rows(); ++i) {
    for (Eigen::Index j = 0; j < theirs_rows.cols(); ++j) {
      // Theirs is rounded to float32: half a unit. Both sum D products in float64. Eigenvectors
      // stored as float32 are off by 2^-25 |u| each; H weights them by 1 / sqrt(D), so a sum over
      // a unit vector moves by at most 2^-25.
      const double bound = kFloatUlp * std::abs(theirs_rows(i, j)) +
                           8 * static_cast<double>(basis.rows()) * kEps +
                           (basis_is_float ? kFloatUlp : 0);
      ASSERT_NEAR(ours(i, j), theirs_rows(i, j), bound)
          << name << " " << CompositionName(composition) << " (" << i << ", " << j << ")";
    }
  }
}

void CompareEigenvalues(const std::string& name, const std::vector<double>& ours,
                        const std::vector<double>& theirs, double relative) {
  ASSERT_EQ(ours.size(), theirs.size()) << name;
  for (size_t j = 0; j < ours.size(); ++j) {
    ASSERT_NEAR(ours[j], theirs[j], relative * std::abs(theirs[j])) << name << " " << j;
  }
}

// What expected.h5 keeps under one group ("layer_0/k", "layer_0/other/ktk").
struct Seen {
  int covariances = 0, eigenvectors = 0, compositions = 0, rotations = 0, files = 0, outputs = 0;
};

Subject CompareGroup(const OfficialCase& official, const std::string& group, Target target,
                     const LayerMoments& moments, Seen& seen) {
  const H5File& file = official.expected();
  const std::string name = official.name() + "/" + group;
  const Matrix c = FormTargets(moments, target, Grouping::kLayer).at(0);
  const Comparison covariance = CompareSymmetric(file, group + "/C", c);
  EXPECT_LE(covariance.difference, kCovariance * c.norm()) << name;
  seen.covariances += covariance.entries > 0;
  const SymmetricEigen ours = EighSymmetric(c);
  EXPECT_LT(ours.residual_units, 2) << name;
  Subject subject{name, ours.values, ours.vectors, false, {}, {}};
  BoundAngles(subject, covariance.difference, c.norm());
  const std::vector<double> eigenvalues = file.Read<double>(group + "/eigenvalues");
  CompareEigenvalues(name, subject.values, eigenvalues, kEigenvalue);

  if (file.HasDataset(group + "/perm")) {
    const std::vector<int64_t> perm = OfficialPermutation(eigenvalues);
    EXPECT_EQ(perm, file.Read<int64_t>(group + "/perm")) << name;
    if (file.HasDataset(group + "/P")) {
      EXPECT_EQ(PermuteColumns(Matrix::Identity(c.rows(), c.cols()), perm),
                ReadMatrix(file, group + "/P"));
    }
  }
  if (file.HasDataset(group + "/U_cols_low4")) {
    const Matrix low = ReadMatrix(file, group + "/U_cols_low4");
    MatchColumns(subject, low, 0, 0);
    MatchColumns(subject, ReadMatrix(file, group + "/U_cols_high4"), c.rows() - low.cols(), 0);
    ++seen.eigenvectors;
  }
  if (!file.HasDataset(group + "/U")) return subject;

  const Matrix u = ReadMatrix(file, group + "/U");
  const bool is_float = file.Dataset(group + "/U").type() == H5Type::kF32;
  MatchColumns(subject, u, 0, is_float ? kFloatUlp : 0);
  ++seen.eigenvectors;
  for (const std::string rows : {"R", "R_rows"}) {
    if (!file.HasDataset(group + "/" + rows)) continue;
    CompareComposition(name, Composition::kRHPbr, u, is_float, eigenvalues,
                       ReadMatrix(file, group + "/" + rows));
    ++seen.compositions;
  }
  return subject;
}

// The same where the case keeps no eigenvectors but some rows of each rotation: the rows of U
// (composition plain) give the signs, and every entry of the others then follows from ours.
void CompareRowsOnly(const OfficialCase& official, const std::string& group, const Subject& subject,
                     Seen& seen) {
  const H5File& file = official.expected();
  if (!file.HasDataset(group + "/R_plain_rows")) return;
  const Matrix rows = ReadMatrix(file, group + "/R_plain_rows");
  Matrix aligned = subject.vectors;
  double drift = 0;
  for (Eigen::Index j = 0; j < aligned.cols(); ++j) {
    const double angle = std::sqrt(2.0) * subject.angles[static_cast<size_t>(j)];
    const double overlap = aligned.col(j).head(rows.rows()).dot(rows.col(j));
    // The sign is certain when the entries exceed what they may be off by.
    ASSERT_GT(std::sqrt(std::abs(overlap)), 2 * (angle + kFloatUlp)) << subject.name << " " << j;
    if (overlap < 0) aligned.col(j) *= -1;
    drift += angle * angle;
  }
  for (const CompositionInfo& row : CompositionTable()) {
    const std::string dataset = group + "/R_" + std::string(row.name) + "_rows";
    if (!file.HasDataset(dataset)) continue;
    const Matrix theirs = ReadMatrix(file, dataset);
    const Matrix ours = Compose(row.id, aligned, subject.values).topRows(theirs.rows());
    EXPECT_LE((ours - theirs).cwiseAbs().maxCoeff(), std::sqrt(drift) + kFloatUlp)
        << subject.name << " " << row.name;
    ++seen.compositions;
  }
}

// R_<composition> and R_<composition>_rows under "layer_0/other/<method>", from the eigenvectors
// of `u_group`.
void CompareOtherCompositions(const OfficialCase& official, const std::string& group,
                              const std::string& u_group, Seen& seen) {
  const H5File& file = official.expected();
  if (!file.HasDataset(u_group + "/U")) return;
  const Matrix u = ReadMatrix(file, u_group + "/U");
  const bool is_float = file.Dataset(u_group + "/U").type() == H5Type::kF32;
  for (const CompositionInfo& row : CompositionTable()) {
    for (const char* suffix : {"", "_rows"}) {
      const std::string dataset = group + "/R_" + std::string(row.name) + suffix;
      if (!file.HasDataset(dataset)) continue;
      CompareComposition(official.name() + "/" + group, row.id, u, is_float,
                         file.Read<double>(group + "/eigenvalues"), ReadMatrix(file, dataset));
      ++seen.compositions;
    }
  }
}

void CompareFiles(const OfficialCase& official, int layer, const std::string& side,
                  const Subject& subject, Target target, Seen& seen) {
  const std::string start = side + "_rotation_" + std::string(TargetName(target)) + "_";
  for (const std::string& file : official.RotationFiles()) {
    if (!file.starts_with(start)) continue;
    const auto stored = official.ReadRotation(file, layer);
    ASSERT_TRUE(stored.has_value()) << official.name() << " " << file << " layer " << layer;
    // The file rounds eigenvalues to float32.
    CompareEigenvalues(subject.name + " " + file, subject.values, stored->eigenvalues,
                       kEigenvalue + kFloatUlp);
    CompareRotation(subject, CompositionFromName(file.substr(start.size())), stored->rotation);
    ++seen.files;
  }
}

void CompareOutputs(const OfficialCase& official, int layer, const LayerMoments& moments,
                    Seen& seen) {
  const std::string group = "layer_" + std::to_string(layer) + "/svsv_exact";
  if (!official.expected().Has(group)) return;
  const Matrix pooled = FormTargets(moments, Target::kSvsv, Grouping::kLayer).at(0);
  const Comparison sum = CompareSymmetric(official.expected(), group + "/pooled", pooled);
  EXPECT_GT(sum.entries, 0) << official.name() << " " << group;
  EXPECT_LE(sum.difference, kCovariance * pooled.norm()) << official.name() << " " << group;
  const std::vector<Matrix> heads = FormTargets(moments, Target::kSvsv, Grouping::kHead);
  for (size_t h = 0; h < heads.size(); ++h) {
    const Comparison head = CompareSymmetric(official.expected(), group + "/per_kv_head", heads[h],
                                             static_cast<int64_t>(h));
    EXPECT_LE(head.difference, kCovariance * heads[h].norm()) << official.name() << " head " << h;
  }
  ++seen.outputs;
}

void CompareLayer(const OfficialCase& official, int layer, Seen& seen) {
  const std::string root = "layer_" + std::to_string(layer);
  const LayerMoments moments = official.Moments(layer);
  const std::pair<const char*, Target> mains[] = {{"k", Target::kQqt}, {"v", Target::kSst}};
  for (const auto& [side, target] : mains) {
    const Subject subject = CompareGroup(official, root + "/" + side, target, moments, seen);
    CompareOtherCompositions(official, root + "/other/" + std::string(TargetName(target)),
                             root + "/" + side, seen);
    CompareFiles(official, layer, side, subject, target, seen);
  }
  const std::pair<const char*, Target> others[] = {{"k", Target::kKtk}, {"v", Target::kVtv}};
  for (const auto& [side, target] : others) {
    const std::string group = root + "/other/" + std::string(TargetName(target));
    if (!official.expected().Has(group)) continue;
    const Subject subject = CompareGroup(official, group, target, moments, seen);
    if (official.expected().HasDataset(group + "/U")) {
      CompareOtherCompositions(official, group, group, seen);
    } else {
      CompareRowsOnly(official, group, subject, seen);
    }
    CompareFiles(official, layer, side, subject, target, seen);
  }
  CompareOutputs(official, layer, moments, seen);
}

TEST(OfficialCalibration, EveryCaseAndComposition) {
  int cases = 0;
  for (const auto& folder : OfficialCaseFolders()) {
    const OfficialCase official(folder);
    Seen seen;
    for (const int layer : official.layers()) CompareLayer(official, layer, seen);
    ++cases;
    EXPECT_GT(seen.covariances, 0) << official.name();
    EXPECT_GT(seen.eigenvectors, 0) << official.name();
    EXPECT_GT(seen.files, 0) << official.name();
    EXPECT_GT(seen.outputs, 0) << official.name();
    std::printf(
        "%s: %zu layers, %d covariances, %d bases, %d compositions, %d rotations of files, "
        "%d exact V targets\n",
        official.name().c_str(), official.layers().size(), seen.covariances, seen.eigenvectors,
        seen.compositions, seen.files, seen.outputs);
  }
  EXPECT_GT(cases, 0) << "no case found";
}

TEST(OfficialCalibration, HadamardFilesAndMatrix) {
  int files = 0;
  for (const auto& folder : OfficialCaseFolders()) {
    const OfficialCase official(folder);
    if (official.expected().HasDataset("H")) {
      const Matrix h = TimesHadamard(Matrix::Identity(official.dim(), official.dim()));
      // The official entries come from log2(D) divisions by sqrt(2).
      EXPECT_LE((h - ReadMatrix(official.expected(), "H")).cwiseAbs().maxCoeff(), 8 * kEps);
    }
    for (const std::string& file : official.RotationFiles()) {
      if (!file.ends_with("_rotation_hadamard")) continue;
      // Numbered 0 .. n - 1 whatever the dump's layer ids are.
      for (int layer = 0;; ++layer) {
        const auto stored = official.ReadRotation(file, layer);
        if (!stored) break;
        const RotationFit fit = FitHadamard(official.dim(), layer, {});
        for (Eigen::Index i = 0; i < stored->rotation.size(); ++i) {
          ASSERT_EQ(static_cast<double>(fit.stored[static_cast<size_t>(i)]),
                    stored->rotation.data()[i]);
        }
        EXPECT_EQ(fit.eigen.values, stored->eigenvalues);
        ++files;
      }
    }
  }
  EXPECT_GT(files, 0) << "no Hadamard file found";
}

TEST(OfficialCalibration, UresidualIsNotAMethodOfThisToolkit) {
  std::string skipped;
  for (const auto& folder : OfficialCaseFolders()) {
    const OfficialCase official(folder);
    for (const std::string& file : official.OtherFiles()) {
      skipped += " " + official.name() + "/" + file + ".pt";
    }
  }
  if (!skipped.empty()) GTEST_SKIP() << "not compared:" << skipped;
}

}  // namespace
}  // namespace oscar
