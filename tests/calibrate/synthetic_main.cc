// Writes the inputs of scripts/verify_kernels.sh: synthetic_traces DIR [LAYERS].
// DIR gets calibration.trace.h5 (moments alone) and held-out.trace.h5 (rows of sequences of uneven
// lengths), of one made-up model: two channels of every head's keys are large, as in real ones, and
// the covariances of a layer's rows are those of the other trace.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <thread>

#include "calibrate/synthetic_trace.h"

namespace {

namespace fs = std::filesystem;

// Attention of Qwen3-0.6B and Qwen3-1.7B: 28 layers, 16 query heads and 8 KV heads of 128.
oscar::test::SyntheticTrace Model(int layers) {
  oscar::test::SyntheticTrace model;
  model.layers.resize(static_cast<size_t>(layers));
  std::iota(model.layers.begin(), model.layers.end(), 0);
  model.q_heads = 16;
  model.kv_heads = 8;
  model.k_dims = model.v_dims = {128};
  model.spectrum_range = 1000;
  model.key_outlier = 12;
  model.heads_alike = true;
  model.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return model;
}

void Write(const fs::path& folder, int layers) {
  fs::create_directories(folder);
  oscar::test::SyntheticTrace calibration = Model(layers);
  calibration.lengths = {2048};
  calibration.sequences_with_rows = 0;
  calibration.seed = 1;
  WriteSynthetic(calibration, folder / "calibration.trace.h5");
  oscar::test::SyntheticTrace held_out = Model(layers);
  held_out.lengths = {777, 517, 401};
  held_out.seed = 2;
  WriteSynthetic(held_out, folder / "held-out.trace.h5");
}

}  // namespace

int main(int argc, char** argv) {
  int layers = 28;
  if (argc == 3) {
    const std::string_view text = argv[2];
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), layers);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) layers = 0;
  }
  if (argc < 2 || argc > 3 || layers < 1) {
    std::fprintf(stderr, "usage: synthetic_traces DIR [LAYERS]\n");
    return 2;
  }
  try {
    Write(argv[1], layers);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "synthetic_traces: error: %s\n", error.what());
    return 3;
  }
  return 0;
}
