// Which tensors a model consists of: names and shapes in both file formats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/weights/architecture.h"
#include "oscar/weights/model_weights.h"
#include "oscar/weights/tensor_set.h"

namespace oscar {

enum class NameScheme { kHuggingFace, kGguf };

// One tensor of a layer, and where its values go.
struct LayerTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> LayerWeights::*target = nullptr;
  int64_t permuted_heads = 0;  // > 0: the rows of each of so many heads are interleaved
};

// The tensors outside the layers.
struct OuterTensors {
  std::string embedding, final_norm, head;  // head names the embedding when they are tied
};

// Names of the tensors of a model and their expected shapes.
class Layout {
 public:
  // Throws nothing; `prefix` is put before Hugging Face names ("model.", or "" for checkpoints of
  // the bare decoder).
  Layout(const Architecture& architecture, const ModelConfig& config, NameScheme scheme,
         std::string prefix);

  std::vector<LayerTensor> Layer(int64_t layer) const;
  const OuterTensors& outer() const { return outer_; }

  // Compares every tensor with what the files hold. Throws Error(kFormat) naming file and tensor
  // for one that is missing or of another shape, Error(kUnsupported) for an element type that
  // cannot be read and for a tensor that is not part of the model.
  void Check(const TensorSet& tensors, const std::string& source) const;

 private:
  void CheckOne(const TensorSet& tensors, const std::string& source, const std::string& name,
                const std::vector<int64_t>& shape) const;

  const ModelConfig& config_;
  bool permuted_;
  NameScheme scheme_;
  std::string prefix_;
  OuterTensors outer_;
};

}  // namespace oscar
