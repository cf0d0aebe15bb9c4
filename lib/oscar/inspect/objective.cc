#include "oscar/inspect/objective.h"

#include <algorithm>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/hadamard.h"

namespace oscar {
namespace {

// Digit reversal with leading radix dim / 2^k and k bits (docs/formats/zoo.md).
int64_t DigitReversal(int64_t i, int64_t dim) {
  const int64_t block = HadamardBlock(dim);
  int64_t reversed = 0;
  int64_t rest = i % block;
  for (int64_t bit = 1; bit < block; bit *= 2, rest /= 2) reversed = 2 * reversed + rest % 2;
  return reversed * (dim / block) + i / block;
}

// sorted[rank]: index of the eigenvalue of that rank, largest first.
std::vector<int64_t> Ranking(std::span<const float> eigenvalues, int64_t dim) {
  std::vector<int64_t> sorted(static_cast<size_t>(dim));
  for (int64_t i = 0; i < dim; ++i) sorted[static_cast<size_t>(i)] = dim - 1 - i;
  if (eigenvalues.empty()) return sorted;
  OSCAR_CHECK(static_cast<int64_t>(eigenvalues.size()) == dim);
  std::reverse(sorted.begin(), sorted.end());
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
    return eigenvalues[static_cast<size_t>(a)] > eigenvalues[static_cast<size_t>(b)];
  });
  return sorted;
}

// X from Y = X P: column perm[j] of X is column j of Y, with perm[br(rank)] = sorted[rank].
Matrix UndoPermutation(const Matrix& y, const std::vector<int64_t>& sorted) {
  const Eigen::Index dim = y.cols();
  Matrix x(y.rows(), dim);
  for (Eigen::Index rank = 0; rank < dim; ++rank) {
    x.col(sorted[static_cast<size_t>(rank)]) = y.col(DigitReversal(rank, dim));
  }
  return x;
}

Matrix TimesH(Matrix a) {
  ApplyHadamard(MatrixView<double>{a.data(), a.rows(), a.cols()});
  return a;
}

// U from R = U Q H, where Q deals columns over the blocks of H (the identity when dim = 2^k).
Matrix UndoDealtHadamard(const Matrix& r) {
  const Matrix dealt = TimesH(r);
  const Eigen::Index dim = r.cols();
  const int64_t block = HadamardBlock(dim);
  Matrix u(r.rows(), dim);
  for (Eigen::Index p = 0; p < dim; ++p)
    u.col(p % block * (dim / block) + p / block) = dealt.col(p);
  return u;
}

}  // namespace

ZooSide GuessSide(const ZooFile& file, const std::filesystem::path& path) {
  const bool value_name = path.filename().string().starts_with("v_");
  return SideOfObjective(file.objective).value_or(value_name ? ZooSide::kValue : ZooSide::kKey);
}

Objective ParseObjective(const std::string& objective, ZooSide side) {
  if (objective == "hadamard") return {std::nullopt, "hadamard"};
  if (objective == "cov_eig_hadamard_perhead") {
    return {side == ZooSide::kKey ? Target::kKtk : Target::kVtv, "r_h"};
  }
  const size_t end = objective.find('_');
  if (end == std::string::npos) return {};
  const std::string name = objective.substr(0, end);
  for (const Target target :
       {Target::kQqt, Target::kKtk, Target::kSst, Target::kSvsv, Target::kVtv}) {
    if (TargetName(target) == name) return {target, objective.substr(end + 1)};
  }
  return {};
}

std::optional<Matrix> RecoverBasis(const std::string& composition, const Matrix& rotation,
                                   std::span<const float> eigenvalues) {
  OSCAR_CHECK(rotation.rows() == rotation.cols());
  const std::vector<int64_t> sorted = Ranking(eigenvalues, rotation.cols());
  if (composition == "plain") return rotation;
  if (composition == "br") return UndoPermutation(rotation, sorted);               // U P
  if (composition == "br_h128") return UndoPermutation(TimesH(rotation), sorted);  // U P H
  if (composition == "r_h") return UndoDealtHadamard(rotation);                    // U H
  if (composition == "r_h_pbr") {                                                  // U H P
    return UndoDealtHadamard(UndoPermutation(rotation, sorted));
  }
  if (composition == "h_r_pbr") {  // H U P
    const Matrix hu = UndoPermutation(rotation, sorted);
    return TimesH(hu.transpose()).transpose();
  }
  if (composition == "h_pbr_r") {  // H P U: P has its ones at (perm[j], j), (P U)[perm[j]] = U[j]
    const Matrix pu_transposed = TimesH(rotation.transpose());
    Matrix u(rotation.rows(), rotation.cols());
    for (Eigen::Index rank = 0; rank < u.rows(); ++rank) {
      u.row(DigitReversal(rank, u.rows())) =
          pu_transposed.col(sorted[static_cast<size_t>(rank)]).transpose();
    }
    return u;
  }
  return std::nullopt;
}

std::vector<Matrix> CandidateBases(const std::string& composition, const ZooLayer& layer,
                                   int64_t head) {
  const Matrix rotation = RotationOf(layer, head);
  std::vector<Matrix> bases;
  if (auto basis = RecoverBasis(composition, rotation)) bases.push_back(std::move(*basis));
  const auto& values = layer.eigenvalues;
  const bool tied = std::adjacent_find(values.begin(), values.end()) != values.end();
  if (bases.empty() || !tied) return bases;
  bases.push_back(*RecoverBasis(composition, rotation, values));
  return bases;
}

Matrix RotationOf(const ZooLayer& layer, int64_t head) {
  OSCAR_CHECK(head >= 0 && head < MatricesOf(layer));
  Matrix matrix(layer.dim, layer.dim);
  const float* source = layer.rotation.data() + head * layer.dim * layer.dim;
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    matrix.data()[i] = static_cast<double>(source[i]);
  }
  return matrix;
}

int64_t MatricesOf(const ZooLayer& layer) { return layer.heads > 0 ? layer.heads : 1; }

double RoundoffOf(DType stored_as) {
  switch (stored_as) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

}  // namespace oscar
