// What the objective of a rotation file says: from which target and by which product the matrices
// were made, and how to undo the product.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oscar/stats/moments.h"
#include "oscar/zoo/entry.h"

namespace oscar {

// Side of a file on its own: by its objective, else by its name ("v_...": values).
ZooSide GuessSide(const ZooFile& file, const std::filesystem::path& path);

struct Objective {
  std::optional<Target> target;  // nullopt: the objective names no target that we know
  std::string composition;       // "r_h_pbr", "hadamard", ...; empty when unknown
};

// "<target>_<composition>", "hadamard", or the per-head files of the public repository
// ("cov_eig_hadamard_perhead": eigenvectors of K^T K or V^T V times H). `side` matters for those
// only.
Objective ParseObjective(const std::string& objective, ZooSide side);

// The basis U inside R = rotation: R is U H P with the official permutation, or another product of
// `composition` (docs/formats/zoo.md lists all). P ranks the eigenvalues in descending order, equal
// ones in their order; empty `eigenvalues` mean strictly ascending ones. Exact apart from rounding.
// nullopt when the product does not contain U. Columns keep the ascending order.
std::optional<Matrix> RecoverBasis(const std::string& composition, const Matrix& rotation,
                                   std::span<const float> eigenvalues = {});

// All bases that may have made head `head` of a layer: one, or two when stored eigenvalues are
// equal, since equal float32 values may have been different or equal in float64. Empty when the
// product does not contain U.
std::vector<Matrix> CandidateBases(const std::string& composition, const ZooLayer& layer,
                                   int64_t head);

// Head `head` (0 for shared rotations) of a layer as float64.
Matrix RotationOf(const ZooLayer& layer, int64_t head);
// Number of matrices of a layer.
int64_t MatricesOf(const ZooLayer& layer);

// Unit roundoff of the type in which rotations were stored.
double RoundoffOf(DType stored_as);

}  // namespace oscar
