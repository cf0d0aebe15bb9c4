// Small rotation files with known content.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/zoo/entry.h"

namespace oscar::test {

// A dense orthogonal [dim, dim] matrix: a product of Householder reflections in float64, rounded
// once to float32.
inline std::vector<float> RandomRotation(int64_t dim, uint32_t seed) {
  std::mt19937 generator(seed);  // its sequence is fixed by the C++ standard
  const auto n = static_cast<size_t>(dim);
  std::vector<double> r(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) r[i * n + i] = 1;
  for (size_t step = 0; step < n; ++step) {
    std::vector<double> v(n);
    double norm = 0;
    for (double& x : v) {
      x = static_cast<double>(generator()) / 4294967296.0 - 0.5;
      norm += x * x;
    }
    for (size_t i = 0; i < n; ++i) {
      double dot = 0;
      for (size_t k = 0; k < n; ++k) dot += r[i * n + k] * v[k];
      for (size_t k = 0; k < n; ++k) r[i * n + k] -= 2 * dot / norm * v[k];
    }
  }
  return {r.begin(), r.end()};
}

inline ZooLayer RandomLayer(int64_t dim, uint32_t seed, int64_t heads = 0) {
  ZooLayer layer;
  layer.dim = dim;
  layer.heads = heads;
  for (int64_t head = 0; head < (heads > 0 ? heads : 1); ++head) {
    const auto matrix = RandomRotation(dim, seed * 131 + static_cast<uint32_t>(head));
    layer.rotation.insert(layer.rotation.end(), matrix.begin(), matrix.end());
  }
  if (heads == 0) {
    for (int64_t i = 0; i < dim; ++i) layer.eigenvalues.push_back(0.5F * static_cast<float>(i + 1));
  }
  return layer;
}

inline ZooFile RandomFile(const std::string& objective, const std::vector<int64_t>& ids,
                          int64_t dim, uint32_t seed, int64_t heads = 0) {
  ZooFile file;
  file.format_version = heads > 0 ? 2 : 1;
  file.objective = objective;
  file.source_grouping = heads > 0 ? "per_kv_head" : "layer";
  for (const int64_t id : ids) {
    file.layers[id] = RandomLayer(dim, seed + static_cast<uint32_t>(id), heads);
  }
  return file;
}

// Runs `call` and returns the Error it throws; fails by a CheckFailure when it throws none.
template <typename Call>
Error ErrorOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw CheckFailure("expected an Error, nothing was thrown");
}

}  // namespace oscar::test
