// oscar-dump --import and oscar-calibrate against what the official program made of the same dumps,
// on every case found in official_vectors/calibration, through files and command lines alone.
#include <gtest/gtest.h>

#include <Eigen/Eigenvalues>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "cli/official_recipes.h"
#include "oscar/core/value.h"
#include "oscar/trace/trace.h"
#include "support/official_compare.h"
#include "support/process.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::OfficialCase;

class Case {
 public:
  Case(const OfficialCase& official, const fs::path& scratch)
      : official_(official), scratch_(scratch) {}

  void Run() {
    const auto count = [&](const char* name) {
      return std::to_string(official_.expected().IntAttribute(name));
    };
    const fs::path trace = scratch_ / "case.trace.h5";
    Check(test::Run("oscar-dump",
                    {"--import", (official_.folder() / "dump").string(), "--q-heads",
                     count("num_q_heads"), "--kv-heads", count("num_kv_heads"), "--moments", "all",
                     "--rows-tokens", "0", "--out", trace.string()},
                    scratch_ / "dump"));
    const TraceReader reader(trace);
    ASSERT_EQ(reader.header().layers, official_.layers()) << official_.name();
    for (const int layer : official_.layers()) moments_[layer] = reader.ReadMoments(layer);
    for (const test::Recipe& recipe : test::RecipesOf(official_)) RunRecipe(trace, recipe);
    std::printf("%s: %d files, %zu official ones with %d rotations, %d covariances\n",
                official_.name().c_str(), files, official_files.size(), rotations, covariances);
  }

  std::set<std::string> official_files;
  int files = 0, rotations = 0, covariances = 0, eigenvalues = 0;

 private:
  static void Check(const test::ProcessResult& result) {
    if (result.exit_code != 0) throw std::runtime_error(result.err);
  }

  void RunRecipe(const fs::path& trace, const test::Recipe& recipe) {
    const fs::path entry = scratch_ / (test::NameOf(recipe.key) + "_" + test::NameOf(recipe.value) +
                                       "_" + recipe.composition);
    // The cases are small: less than the default of 10 tokens for each dim.
    Check(test::Run("oscar-calibrate",
                    {"--traces", trace.string(), "--model-name", official_.name(), "--k-target",
                     test::NameOf(recipe.key), "--v-target", test::NameOf(recipe.value),
                     "--composition", recipe.composition, "--min-tokens-per-dim", "0", "--clip",
                     "0.96,0.92", "--out", entry.string()},
                    entry));
    const Value manifest = Value::FromJson(test::Slurp(entry / "manifest.json"), "manifest.json");
    CompareSide(entry, manifest, 'k', recipe.key, recipe.composition);
    CompareSide(entry, manifest, 'v', recipe.value, recipe.composition);
  }

  void CompareSide(const fs::path& entry, const Value& manifest, char side,
                   const std::optional<Target>& target, const std::string& composition) {
    const std::string file = test::FileOf(side, target, composition);
    const fs::path path = entry / (file + ".pt");
    const fs::path theirs = official_.PathOf(file);
    const bool known = fs::exists(theirs);
    files += 1;
    if (known) official_files.insert(file);
    // The official Hadamard files number their layers 0 .. n - 1 whatever the dump's ids are.
    const bool dense = official_.layers().back() + 1 == static_cast<int>(official_.layers().size());
    if (known && (target || dense)) {
      EXPECT_EQ(test::Structure(ReadTorchFile(path)), test::Structure(ReadTorchFile(theirs)))
          << path;
    }
    for (const int layer : official_.layers()) {
      const auto ours = test::ReadRotationLayer(path, layer);
      ASSERT_TRUE(ours.has_value()) << path << " layer " << layer;
      std::optional<test::StoredLayer> expected;
      if (known) expected = test::ReadRotationLayer(theirs, target ? layer : 0);
      ASSERT_EQ(expected.has_value(), known) << theirs << " layer " << layer;
      if (!target) {
        EXPECT_TRUE(!known || ours->rotation == expected->rotation) << path;
        continue;
      }
      const Value& record = manifest.At("layers").At(std::to_string(layer));
      CompareLayer(file, layer, *target, CompositionFromName(composition), *ours, expected,
                   record.At(side == 'k' ? "key" : "value"));
    }
  }

  void CompareLayer(const std::string& file, int layer, Target target, Composition composition,
                    const test::StoredLayer& ours, const std::optional<test::StoredLayer>& theirs,
                    const Value& record);

  const OfficialCase& official_;
  fs::path scratch_;
  std::map<int, LayerMoments> moments_;
};

// Where expected.h5 keeps a target: group, and name of the matrix.
std::pair<std::string, std::string> PlaceOf(int layer, Target target) {
  const std::string root = "layer_" + std::to_string(layer) + "/";
  if (target == Target::kQqt) return {root + "k", "C"};
  if (target == Target::kSst) return {root + "v", "C"};
  if (target == Target::kSvsv) return {root + "svsv_exact", "pooled"};
  return {root + "other/" + std::string(TargetName(target)), "C"};
}

Eigen::VectorXd ToVector(const std::vector<double>& x) {
  return Eigen::Map<const Eigen::VectorXd>(x.data(), static_cast<Eigen::Index>(x.size()));
}

void Case::CompareLayer(const std::string& file, int layer, Target target, Composition composition,
                        const test::StoredLayer& ours,
                        const std::optional<test::StoredLayer>& theirs, const Value& record) {
  const std::string name = official_.name() + " " + file + " layer " + std::to_string(layer);
  const auto [group, matrix] = PlaceOf(layer, target);
  const Matrix c = FormTargets(moments_.at(layer), target, Grouping::kLayer).at(0);
  const test::Comparison covariance =
      test::CompareSymmetric(official_.expected(), group + "/" + matrix, c);
  EXPECT_LE(covariance.difference, test::kCovariance * c.norm()) << name;
  covariances += covariance.entries > 0;

  test::Subject subject{name, {}, {}, true, {}, {}};
  for (const Value& x : record.At("eigenvalues").AsArray()) subject.values.push_back(x.AsDouble());
  // The exact V target is no official one: Eigen's solver, on the covariance just compared.
  Eigen::VectorXd expected = Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(c).eigenvalues();
  if (official_.expected().HasDataset(group + "/eigenvalues")) {
    expected = ToVector(official_.expected().Read<double>(group + "/eigenvalues"));
    ++eigenvalues;
  }
  const Eigen::VectorXd values = ToVector(subject.values);
  ASSERT_EQ(values.size(), expected.size()) << name;
  EXPECT_LE((values - expected).norm(), test::kEigenvalue * expected.norm()) << name;
  EXPECT_EQ(ToVector(ours.eigenvalues), values.cast<float>().cast<double>()) << name;
  EXPECT_LT(record.At("residual_units").AsDouble(), 2) << name;
  BoundAngles(subject, covariance.difference, c.norm());

  if (!test::RecoverBasis(composition, ours.rotation, subject.perm, subject.vectors)) {
    // Without eigenvectors in it the matrix is fixed: the same float32 but for their last bit.
    ASSERT_TRUE(theirs.has_value()) << name;
    EXPECT_LE((ours.rotation - theirs->rotation).cwiseAbs().maxCoeff(), test::kFloatUlp) << name;
  } else if (theirs) {
    CompareRotation(subject, composition, theirs->rotation);
  }
  if (subject.vectors.size() > 0) {
    // R diagonalises C. Rounding to float32 moves U by at most 2^-24 |U|_F = 2^-24 sqrt(D) (an
    // orthogonal product away), hence U^T C U by twice that times |C|.
    const Matrix diagonal = subject.vectors.transpose() * c * subject.vectors;
    const double bound = 2 * test::kFloatUlp * std::sqrt(static_cast<double>(c.rows())) * c.norm();
    EXPECT_LE((diagonal - Matrix(values.asDiagonal())).norm(), 1.01 * bound) << name;
  }
  rotations += theirs.has_value();
}

TEST(ImportParity, EveryOfficialFileThroughThePrograms) {
  const fs::path scratch = test::FreshFolder("cli_import_parity");
  int cases = 0;
  for (const fs::path& folder : test::OfficialCaseFolders()) {
    const OfficialCase official(folder);
    fs::create_directories(scratch / official.name());
    Case one(official, scratch / official.name());
    one.Run();
    const auto layers = static_cast<int>(official.layers().size());
    const std::vector<std::string> files = official.RotationFiles();
    EXPECT_EQ(one.official_files, std::set(files.begin(), files.end())) << official.name();
    EXPECT_GE(one.rotations, 2 * layers) << official.name();
    EXPECT_GE(one.covariances, 3 * layers) << official.name();
    EXPECT_GE(one.eigenvalues, 2 * layers) << official.name();
    for (const std::string& file : official.OtherFiles()) {
      std::printf("%s: skipped %s.pt\n", official.name().c_str(), file.c_str());
    }
    ++cases;
  }
  EXPECT_GT(cases, 0) << "no case under " << test::OfficialVectors();
}

}  // namespace
}  // namespace oscar
