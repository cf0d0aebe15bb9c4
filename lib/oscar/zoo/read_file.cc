// ReadZooFile: from a PyTorch object graph to rotations by layer.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/zoo/entry.h"
#include "oscar/zoo/sharing.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using Dict = TorchValue::Dict;
using List = TorchValue::List;

const Dict* AsDict(const TorchValue& value) {
  const auto* dict = std::get_if<std::shared_ptr<Dict>>(&value.data);
  return dict == nullptr ? nullptr : dict->get();
}

// The value as a manifest value; nullopt when it holds a tensor or a key that is no string.
std::optional<Value> ToValue(const TorchValue& value) {
  if (std::holds_alternative<std::monostate>(value.data)) return Value();
  if (const auto* x = std::get_if<bool>(&value.data)) return Value(*x);
  if (const auto* x = std::get_if<int64_t>(&value.data)) return Value(*x);
  if (const auto* x = std::get_if<double>(&value.data)) return Value(*x);
  if (const auto* x = std::get_if<std::string>(&value.data)) return Value(*x);
  if (const auto* list = std::get_if<std::shared_ptr<List>>(&value.data)) {
    Value::Array items;
    for (const TorchValue& item : **list) {
      std::optional<Value> plain = ToValue(item);
      if (!plain) return std::nullopt;
      items.push_back(std::move(*plain));
    }
    return Value(std::move(items));
  }
  const Dict* dict = AsDict(value);
  if (dict == nullptr) return std::nullopt;
  Value::Object items;
  for (const auto& [key, item] : *dict) {
    const auto* name = std::get_if<std::string>(&key.data);
    std::optional<Value> plain = ToValue(item);
    if (name == nullptr || !plain) return std::nullopt;
    items[*name] = std::move(*plain);
  }
  return Value(std::move(items));
}

bool IsReal(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path) {}

  ZooFile Run() {
    const TorchValue top = ReadTorchFile(path_);
    const Dict* dict = AsDict(top);
    if (dict == nullptr) RefuseTensor(top);
    const TorchValue* layers = top.Find("layers");
    if (layers == nullptr) RefuseDict(*dict);
    ReadHeader(top, *dict);
    ReadLayers(*layers);
    CheckSharedStorages(tensors_, path_);
    for (PendingTensor& pending : pending_) *pending.target = pending.tensor.ToFloats();
    return std::move(file_);
  }

 private:
  [[noreturn]] void Fail(ErrorCode code, const std::string& what, std::string hint = "") const {
    throw Error(code, fmt::format("{}: {}", path_.string(), what), std::move(hint));
  }

  [[noreturn]] void RefuseTensor(const TorchValue& top) const {
    if (!top.is_tensor()) Fail(ErrorCode::kFormat, "expected a dict with \"layers\"");
    const auto& shape = std::get<TorchTensor>(top.data).shape;
    const char* what = shape.size() == 3   ? "a stack without layer ids"
                       : shape.size() == 2 ? "one layer of an MLA folder"
                                           : "no rotation";
    Fail(ErrorCode::kUnsupported,
         fmt::format("holds a bare tensor [{}] ({}), expected a dict with \"layers\"",
                     fmt::join(shape, ", "), what));
  }

  [[noreturn]] void RefuseDict(const Dict& dict) const {
    std::string what = "a dict without \"layers\"";
    bool all_numbers = !dict.empty();
    for (const auto& [key, value] : dict) {
      all_numbers = all_numbers && std::holds_alternative<int64_t>(key.data);
      const auto* name = std::get_if<std::string>(&key.data);
      if (name != nullptr && name->starts_with("codebooks")) what = "vector codebooks";
    }
    if (all_numbers) what = "a flat dict of tensors by layer id";
    Fail(ErrorCode::kUnsupported, fmt::format("holds {}, expected a dict with \"layers\"", what));
  }

  std::string TextOf(const TorchValue& top, const std::string& key) const {
    const TorchValue* value = top.Find(key);
    if (value == nullptr) return "";
    const auto* text = std::get_if<std::string>(&value->data);
    if (text == nullptr) Fail(ErrorCode::kFormat, fmt::format("\"{}\" is no string", key));
    return *text;
  }

  void ReadHeader(const TorchValue& top, const Dict& dict) {
    file_.objective = TextOf(top, "objective");
    file_.source_grouping = TextOf(top, "source_grouping");
    const TorchValue* version = top.Find("format_version");
    if (version == nullptr) Fail(ErrorCode::kFormat, "\"format_version\" is missing");
    if (const auto* number = std::get_if<int64_t>(&version->data)) {
      if (*number == 3) {
        Fail(ErrorCode::kUnsupported,
             "format_version 3 (OSCAR-2 transforms, not orthogonal) is not read");
      }
      if (*number != 1 && *number != 2) {
        Fail(ErrorCode::kUnsupported, fmt::format("format_version {}, expected 1 or 2", *number));
      }
      file_.format_version = *number;
    } else if (const auto* text = std::get_if<std::string>(&version->data)) {
      file_.format_version = *text;
    } else {
      Fail(ErrorCode::kFormat, "\"format_version\" is neither an integer nor a string");
    }
    static const std::set<std::string> kKnown = {"format_version", "objective", "source_grouping",
                                                 "layers"};
    for (const auto& [key, value] : dict) {
      const auto* name = std::get_if<std::string>(&key.data);
      if (name == nullptr) Fail(ErrorCode::kFormat, "a top-level key that is no string");
      if (kKnown.contains(*name)) continue;
      if (std::optional<Value> plain = ToValue(value)) {
        file_.extra[*name] = std::move(*plain);
      } else {
        file_.unreadable.push_back(*name);
      }
    }
  }

  int64_t LayerId(const TorchValue& key) const {
    int64_t id = -1;
    if (const auto* number = std::get_if<int64_t>(&key.data)) id = *number;
    if (const auto* text = std::get_if<std::string>(&key.data)) {
      const char* end = text->data() + text->size();
      const auto [stop, error] = std::from_chars(text->data(), end, id);
      if (error != std::errc() || stop != end || fmt::format("{}", id) != *text) id = -1;
    }
    if (id < 0) Fail(ErrorCode::kFormat, "a key of \"layers\" that is no layer number");
    return id;
  }

  void ReadLayers(const TorchValue& layers) {
    const Dict* dict = AsDict(layers);
    if (dict == nullptr) Fail(ErrorCode::kFormat, "\"layers\" is no dict");
    if (dict->empty()) Fail(ErrorCode::kFormat, "\"layers\" is empty");
    for (const auto& [key, value] : *dict) {
      const int64_t id = LayerId(key);
      const auto [entry, is_new] = file_.layers.try_emplace(id);
      if (!is_new) Fail(ErrorCode::kFormat, fmt::format("layer {} appears twice", id));
      ReadLayer(id, value, entry->second);
    }
    for (const auto& [id, layer] : file_.layers) {
      if ((layer.heads == 0) != (file_.layers.begin()->second.heads == 0)) {
        Fail(ErrorCode::kFormat,
             fmt::format("layer {} has another number of dimensions than layer {}", id,
                         file_.layers.begin()->first));
      }
    }
  }

  void ReadLayer(int64_t id, const TorchValue& value, ZooLayer& layer) {
    const Dict* dict = AsDict(value);
    if (dict == nullptr) Fail(ErrorCode::kFormat, fmt::format("layer {} is no dict", id));
    for (const auto& [key, item] : *dict) {
      const auto* name = std::get_if<std::string>(&key.data);
      if (name != nullptr && (*name == "rotation" || *name == "eigenvalues")) continue;
      if (name != nullptr && *name == "layer_id") {
        const auto* stated = std::get_if<int64_t>(&item.data);
        if (stated == nullptr || *stated != id) {
          Fail(ErrorCode::kFormat, fmt::format("layer {} has another \"layer_id\" inside", id));
        }
        continue;
      }
      const std::string entry = name == nullptr ? "(no string)" : Printable(*name);
      Fail(ErrorCode::kUnsupported,
           fmt::format("layer {} has an entry \"{}\", which plain rotation files do not have", id,
                       entry),
           entry == "M_q" ? "this is a file of calibration moments"
                          : "dropping it could change what the file means, so it is not read");
    }
    ReadRotation(id, value, layer);
    ReadEigenvalues(id, value, layer);
  }

  const TorchTensor& TensorOf(int64_t id, const TorchValue& value, const char* name) const {
    const auto* tensor = std::get_if<TorchTensor>(&value.data);
    if (tensor == nullptr || !IsReal(tensor->dtype)) {
      Fail(ErrorCode::kFormat,
           fmt::format("layer {}: \"{}\" is no tensor of real numbers", id, name));
    }
    return *tensor;
  }

  void ReadRotation(int64_t id, const TorchValue& value, ZooLayer& layer) {
    const TorchValue* item = value.Find("rotation");
    if (item == nullptr) Fail(ErrorCode::kFormat, fmt::format("layer {} has no \"rotation\"", id));
    const TorchTensor& tensor = TensorOf(id, *item, "rotation");
    const std::vector<int64_t>& shape = tensor.shape;
    const bool square = (shape.size() == 2 || shape.size() == 3) && shape.back() > 0 &&
                        shape[shape.size() - 2] == shape.back() && shape.front() > 0;
    if (!square) {
      Fail(ErrorCode::kFormat,
           fmt::format("layer {}: rotation of shape [{}], expected [D, D] or [H_kv, D, D]", id,
                       fmt::join(shape, ", ")));
    }
    layer.dim = shape.back();
    layer.heads = shape.size() == 3 ? shape.front() : 0;
    layer.stored_as = tensor.dtype;
    const bool claims_heads =
        file_.source_grouping == "per_kv_head" || file_.format_version == Value(2);
    const bool claims_layer = file_.source_grouping == "layer" || file_.format_version == Value(1);
    if ((layer.heads > 0 && claims_layer) || (layer.heads == 0 && claims_heads)) {
      Fail(ErrorCode::kFormat,
           fmt::format("layer {}: rotation of shape [{}] contradicts format_version {} with "
                       "source_grouping \"{}\"",
                       id, fmt::join(shape, ", "), Printable(file_.format_version.ToJson()),
                       Printable(file_.source_grouping)));
    }
    Defer(fmt::format("rotation of layer {}", id), tensor, layer.rotation);
  }

  void ReadEigenvalues(int64_t id, const TorchValue& value, ZooLayer& layer) {
    const TorchValue* item = value.Find("eigenvalues");
    if (item == nullptr || std::holds_alternative<std::monostate>(item->data)) return;
    const TorchTensor& tensor = TensorOf(id, *item, "eigenvalues");
    if (tensor.shape != std::vector<int64_t>{layer.dim} || layer.heads > 0) {
      Fail(ErrorCode::kFormat, fmt::format("layer {}: eigenvalues of shape [{}], expected [{}]", id,
                                           fmt::join(tensor.shape, ", "), layer.dim));
    }
    Defer(fmt::format("eigenvalues of layer {}", id), tensor, layer.eigenvalues);
  }

  // Elements are copied out only after all sharing has been checked.
  void Defer(std::string name, const TorchTensor& tensor, std::vector<float>& target) {
    tensors_.push_back({std::move(name), tensor});
    pending_.push_back({tensor, &target});
  }

  struct PendingTensor {
    TorchTensor tensor;
    std::vector<float>* target;  // inside file_.layers, whose nodes do not move
  };
  const fs::path& path_;
  ZooFile file_;
  std::vector<NamedTensor> tensors_;
  std::vector<PendingTensor> pending_;
};

}  // namespace

ZooFile ReadZooFile(const fs::path& path) { return Reader(path).Run(); }

std::optional<ZooSide> SideOfObjective(const std::string& objective) {
  const std::string target = objective.substr(0, objective.find('_'));
  for (const char* name : {"qqt", "ktk", "identity-k"}) {
    if (target == name) return ZooSide::kKey;
  }
  for (const char* name : {"sst", "svsv", "vtv", "identity-v"}) {
    if (target == name) return ZooSide::kValue;
  }
  return std::nullopt;
}

}  // namespace oscar
