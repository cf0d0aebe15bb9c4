// A random model of a few thousand weights, written in both formats. Tensor names, shapes and the
// GGUF row order are spelled out here a second time, independently of the library's table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/model_files.h"

namespace oscar::test {

struct TinySpec {
  std::string type = "llama";
  int64_t layers = 2, hidden = 64, intermediate = 96, vocab = 40;
  int64_t q_heads = 4, kv_heads = 2, head_dim = 24;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false, tied = false;
};

// Specs of every architecture and every optional tensor.
std::vector<TinySpec> TinySpecs();

nlohmann::json TinyConfig(const TinySpec& spec);
// float32 values by Hugging Face name, [shape] included.
std::vector<FileTensor> TinyTensors(const TinySpec& spec);
// The same tensors with their data rounded to "F16" or "BF16".
std::vector<FileTensor> Rounded(const std::vector<FileTensor>& tensors, const std::string& dtype);
// A GGUF file of the same model; llama's q and k rows are stored interleaved.
GgufBuilder TinyGguf(const TinySpec& spec, const std::vector<FileTensor>& tensors);

void WriteTinyFolder(const std::filesystem::path& folder, const nlohmann::json& config,
                     const std::vector<FileTensor>& tensors);

std::vector<float> Floats(const FileTensor& tensor);
const FileTensor& Named(const std::vector<FileTensor>& tensors, const std::string& name);

}  // namespace oscar::test
