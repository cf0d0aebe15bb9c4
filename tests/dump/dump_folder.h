// Writes folders in the official dump layout.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/progress.h"
#include "oscar/core/random.h"
#include "oscar/dump/dump.h"
#include "oscar/torchfile/torchfile.h"

namespace oscar::test {

enum class Layout { kThree, kTwo, kFour };  // [T, H, D], [T, H * D], [1, H, T, D]

inline void WriteTensor(const std::filesystem::path& file, DType dtype,
                        const std::vector<int64_t>& shape, const void* data, size_t bytes) {
  std::filesystem::create_directories(file.parent_path());
  TorchOut out;
  out.data = TorchTensorData{dtype, shape, {static_cast<const uint8_t*>(data), bytes}};
  WriteTorchFile(file, out, file.stem().string());
}

// rows [tokens, heads, dim] in the given layout.
inline void WriteRows(const std::filesystem::path& file, const std::vector<BFloat16>& rows,
                      int64_t heads, int64_t dim, Layout layout = Layout::kThree) {
  const int64_t tokens = static_cast<int64_t>(rows.size()) / (heads * dim);
  std::vector<BFloat16> data = rows;
  std::vector<int64_t> shape = {tokens, heads, dim};
  if (layout == Layout::kTwo) shape = {tokens, heads * dim};
  if (layout == Layout::kFour) {
    shape = {1, heads, tokens, dim};
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(rows.begin() + (t * heads + h) * dim, dim,
                    data.begin() + (h * tokens + t) * dim);
      }
    }
  }
  WriteTensor(file, DType::kBF16, shape, data.data(), data.size() * sizeof(BFloat16));
}

inline void WriteSeqLens(const std::filesystem::path& file, const std::vector<int32_t>& lengths) {
  WriteTensor(file, DType::kI32, {static_cast<int64_t>(lengths.size())}, lengths.data(),
              lengths.size() * sizeof(int32_t));
}

// A dump to be written: the same chunks in every layer, random rows.
struct FakeDump {
  int64_t q_heads = 4, kv_heads = 2, k_dim = 8, v_dim = 8;
  std::vector<int> layers = {0, 1};
  int64_t first_chunk = 0;
  std::vector<std::vector<int32_t>> chunks = {{6}, {20, 13}, {9}};  // seq_lens of each chunk
  int64_t extra_rows = 0;  // rows beyond the sum of seq_lens, NaN, in every chunk
  Layout layout = Layout::kThree;

  // Rows of all chunks in order, cut into chunks: equal seeds give equal rows however cut.
  void Write(const std::filesystem::path& folder) const {
    for (const int layer : layers) {
      const std::filesystem::path base = folder / ("layer_" + std::to_string(layer));
      WritePart(base / "q", layer, q_heads, k_dim);
      WritePart(base / "k", layer, kv_heads, k_dim);
      WritePart(base / "v", layer, kv_heads, v_dim);
      for (size_t c = 0; c < chunks.size(); ++c)
        WriteSeqLens(File(base / "seq_lens", c), chunks[c]);
    }
  }

  std::filesystem::path File(const std::filesystem::path& folder, size_t chunk) const {
    return folder / (std::to_string(first_chunk + static_cast<int64_t>(chunk)) + ".pt");
  }

 private:
  void WritePart(const std::filesystem::path& folder, int layer, int64_t heads, int64_t dim) const {
    Random random(DeriveSeed(static_cast<uint64_t>(layer), folder.filename().string()));
    for (size_t c = 0; c < chunks.size(); ++c) {
      int64_t tokens = 0;
      for (const int32_t length : chunks[c]) tokens += length;
      std::vector<BFloat16> rows(static_cast<size_t>(tokens * heads * dim));
      for (BFloat16& x : rows) x = ToBFloat16(static_cast<float>(random.Normal()));
      rows.resize(rows.size() + static_cast<size_t>(extra_rows * heads * dim), BFloat16{0x7fc0});
      WriteRows(File(folder, c), rows, heads, dim, layout);
    }
  }
};

// Options and context for an import in tests.
struct ImportRun {
  DumpOptions options;
  NullProgress progress;
  CancelToken cancel;

  ImportRun(const std::filesystem::path& folder, const std::filesystem::path& out,
            const FakeDump& dump) {
    options.import_dir = folder;
    options.out = out;
    options.q_heads = dump.q_heads;
    options.kv_heads = dump.kv_heads;
  }

  DumpResult Run() { return RunDump(options, {&progress, &cancel, 1}); }
};

// Runs `action` and returns the Error it throws.
template <typename Action>
Error Thrown(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kUsage, "nothing was thrown"};
}

}  // namespace oscar::test
