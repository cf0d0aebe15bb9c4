// WriteZooFile: the official dict, in the official order.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

TorchOut Text(const std::string& text) {
  TorchOut out;
  out.data = text;
  return out;
}

TorchOut Number(int64_t number) {
  TorchOut out;
  out.data = number;
  return out;
}

TorchOut Wrap(std::shared_ptr<TorchOut::Dict> dict) {
  TorchOut out;
  out.data = std::move(dict);
  return out;
}

TorchOut FromValue(const Value& value) {
  TorchOut out;
  if (value.is_bool()) {
    out.data = value.AsBool();
  } else if (value.is_int()) {
    out.data = value.AsInt();
  } else if (value.is_number()) {
    out.data = value.AsDouble();
  } else if (value.is_string()) {
    out.data = value.AsString();
  } else if (value.is_array()) {
    auto list = std::make_shared<TorchOut::List>();
    for (const Value& item : value.AsArray()) list->push_back(FromValue(item));
    out.data = std::move(list);
  } else if (value.is_object()) {
    auto dict = std::make_shared<TorchOut::Dict>();
    for (const auto& [key, item] : value.AsObject()) {
      dict->emplace_back(Text(key), FromValue(item));
    }
    out.data = std::move(dict);
  }
  return out;
}

// Makes tensors of float32 vectors; with kShare equal vectors become one storage.
class TensorMaker {
 public:
  explicit TensorMaker(ZooAliases aliases) : aliases_(aliases) {}

  TorchOut Make(const std::vector<float>& values, std::vector<int64_t> shape) {
    const std::vector<float>* source = &values;
    if (aliases_ == ZooAliases::kShare) {
      source = first_
                   .try_emplace(std::string(reinterpret_cast<const char*>(values.data()),
                                            values.size() * sizeof(float)),
                                &values)
                   .first->second;
    }
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(source->data()),
                                         source->size() * sizeof(float));
    TorchOut out;
    out.data = TorchTensorData{DType::kF32, std::move(shape), bytes};
    return out;
  }

 private:
  ZooAliases aliases_;
  std::map<std::string, const std::vector<float>*> first_;  // by content
};

TorchOut LayerOut(int64_t id, const ZooLayer& layer, TensorMaker& tensors) {
  const int64_t matrices = layer.heads > 0 ? layer.heads : 1;
  OSCAR_CHECK(layer.dim > 0);
  OSCAR_CHECK(layer.rotation.size() == static_cast<size_t>(matrices * layer.dim * layer.dim));
  std::vector<int64_t> shape = {layer.dim, layer.dim};
  if (layer.heads > 0) shape.insert(shape.begin(), layer.heads);
  auto entry = std::make_shared<TorchOut::Dict>();
  entry->emplace_back(Text("layer_id"), Number(id));
  entry->emplace_back(Text("rotation"), tensors.Make(layer.rotation, std::move(shape)));
  if (!layer.eigenvalues.empty()) {
    OSCAR_CHECK(layer.heads == 0);
    OSCAR_CHECK(layer.eigenvalues.size() == static_cast<size_t>(layer.dim));
    entry->emplace_back(Text("eigenvalues"), tensors.Make(layer.eigenvalues, {layer.dim}));
  }
  return Wrap(entry);
}

}  // namespace

void WriteZooFile(const std::filesystem::path& path, const ZooFile& file, ZooAliases aliases) {
  if (!file.unreadable.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot write {}: the entries {} of the source would be lost",
                            path.string(), fmt::join(file.unreadable, ", ")));
  }
  OSCAR_CHECK(!file.layers.empty());
  TensorMaker tensors(aliases);
  auto layers = std::make_shared<TorchOut::Dict>();
  for (const auto& [id, layer] : file.layers) {
    layers->emplace_back(Number(id), LayerOut(id, layer, tensors));
  }
  auto top = std::make_shared<TorchOut::Dict>();
  top->emplace_back(Text("format_version"), FromValue(file.format_version));
  top->emplace_back(Text("objective"), Text(file.objective));
  top->emplace_back(Text("source_grouping"), Text(file.source_grouping));
  top->emplace_back(Text("layers"), Wrap(layers));
  if (file.extra.is_object()) {
    for (const auto& [key, value] : file.extra.AsObject()) {
      top->emplace_back(Text(key), FromValue(value));
    }
  }
  WriteTorchFile(path, Wrap(top), path.stem().string());
}

}  // namespace oscar
