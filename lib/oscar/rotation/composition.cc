#include "oscar/rotation/composition.h"

#include <fmt/format.h>

#include <array>

#include "oscar/core/error.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/permutation.h"

namespace oscar {
namespace {

constexpr std::array<CompositionInfo, 10> kTable = {{
    {Composition::kPlain, "plain", "U"},
    {Composition::kPbr, "pbr", "P"},
    {Composition::kBr, "br", "U P"},
    {Composition::kBrH128, "br_h128", "U P H"},
    {Composition::kRH, "r_h", "U H"},
    {Composition::kHPbr, "h_pbr", "H P"},
    {Composition::kHRPbr, "h_r_pbr", "H U P"},
    {Composition::kHPbrR, "h_pbr_r", "H P U"},
    {Composition::kRHPbr, "r_h_pbr", "U H P"},
    {Composition::kHadamard, "hadamard", "H"},
}};

Matrix TimesHadamardDealt(const Matrix& basis) {
  return TimesHadamard(PermuteColumns(basis, DealOverBlocks(basis.cols())));
}

}  // namespace

std::span<const CompositionInfo> CompositionTable() { return kTable; }

std::string_view CompositionName(Composition composition) {
  for (const CompositionInfo& row : kTable) {
    if (row.id == composition) return row.name;
  }
  FailCheck("composition is in the table", __FILE__, __LINE__);
}

Composition CompositionFromName(std::string_view name) {
  std::string known;
  for (const CompositionInfo& row : kTable) {
    if (row.name == name) return row.id;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  throw Error(ErrorCode::kUsage, fmt::format("unknown composition '{}'; known: {}", name, known));
}

Matrix Compose(Composition composition, const Matrix& basis, std::span<const double> eigenvalues) {
  OSCAR_CHECK(basis.rows() == basis.cols());
  const Matrix identity = Matrix::Identity(basis.rows(), basis.cols());
  if (composition == Composition::kHadamard) return TimesHadamard(identity);
  OSCAR_CHECK(static_cast<int64_t>(eigenvalues.size()) == basis.cols());
  const std::vector<int64_t> perm = OfficialPermutation(eigenvalues);
  switch (composition) {
    case Composition::kPlain:
      return basis;
    case Composition::kPbr:
      return PermuteColumns(identity, perm);
    case Composition::kBr:
      return PermuteColumns(basis, perm);
    case Composition::kBrH128:
      return TimesHadamard(PermuteColumns(basis, perm));
    case Composition::kRH:
      return TimesHadamardDealt(basis);
    case Composition::kHPbr:
      return PermuteColumns(TimesHadamard(identity), perm);
    case Composition::kHRPbr:
      return PermuteColumns(HadamardTimes(basis), perm);
    case Composition::kHPbrR:
      return PermuteColumns(TimesHadamard(identity), perm) * basis;
    case Composition::kRHPbr:
      return PermuteColumns(TimesHadamardDealt(basis), perm);
    case Composition::kHadamard:
      break;
  }
  FailCheck("every composition has a formula", __FILE__, __LINE__);
}

}  // namespace oscar
