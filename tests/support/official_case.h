// One case of the official calibration vectors: the dump read chunk by chunk, moments from their
// definitions in float64, and what the official program made of it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "oscar/h5/file.h"
#include "oscar/linalg/matrix.h"
#include "oscar/stats/moments.h"

namespace oscar::test {

// Rows of one layer, all chunks of the dump that the official program used, float64.
struct DumpLayer {
  std::vector<Matrix> q, k, v;    // one [tokens, D] for each head
  std::vector<int64_t> seq_lens;  // over the concatenated tokens
};

// One layer of a rotation file, official or ours.
struct StoredLayer {
  Matrix rotation;                  // float32 widened
  std::vector<double> eigenvalues;  // float32 widened
};
// nullopt when the file has no layer of that id.
std::optional<StoredLayer> ReadRotationLayer(const std::filesystem::path& file, int layer);

class OfficialCase {
 public:
  explicit OfficialCase(const std::filesystem::path& folder);

  const std::string& name() const { return name_; }
  const std::filesystem::path& folder() const { return folder_; }
  const H5File& expected() const { return expected_; }
  const std::vector<int>& layers() const { return layers_; }
  int64_t dim() const { return dim_; }

  // The moments of one layer, by the formulas of the vectors' README.
  LayerMoments Moments(int layer) const;
  // official/*.pt that hold a rotation of this toolkit ("k_rotation_qqt_r_h_pbr"), sorted.
  std::vector<std::string> RotationFiles() const;
  // official/*.pt of methods this toolkit does not have.
  std::vector<std::string> OtherFiles() const;

  // Where an official file lies, by its name without extension.
  std::filesystem::path PathOf(const std::string& file) const;
  std::optional<StoredLayer> ReadRotation(const std::string& file, int layer) const {
    return ReadRotationLayer(PathOf(file), layer);
  }

 private:
  DumpLayer ReadDump(int layer) const;

  std::filesystem::path folder_;
  std::string name_;
  H5File expected_;
  std::vector<int> layers_, chunks_;
  int64_t dim_, q_heads_, kv_heads_, tokens_;
};

// Every folder with an expected.h5, sorted by name.
std::vector<std::filesystem::path> OfficialCaseFolders();

}  // namespace oscar::test
