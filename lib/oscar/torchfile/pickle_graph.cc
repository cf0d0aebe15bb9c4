#include "oscar/torchfile/pickle_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "oscar/core/error.h"

namespace oscar {
namespace {

// Converts containers once and remembers them, so that shared containers stay shared.
class Builder {
 public:
  Builder(const PickleGraph& graph, const std::string& where) : graph_(graph), where_(where) {}

  TorchValue Convert(NodeId id, int depth) {
    const PickleNode& node = graph_.nodes[id];
    switch (node.kind) {
      case NodeKind::kNone:
        return {};
      case NodeKind::kBool:
        return {node.integer != 0};
      case NodeKind::kInt:
        return {node.integer};
      case NodeKind::kFloat:
        return {node.real};
      case NodeKind::kString:
        CountText(node.text.size());
        return {std::string(node.text)};
      case NodeKind::kTensor:
        return {graph_.tensors[static_cast<size_t>(node.integer)]};
      case NodeKind::kTuple:
      case NodeKind::kList:
      case NodeKind::kDict:
        return Container(id, depth);
      default:
        Fail(ErrorCode::kFormat,
             fmt::format("a {} where a value belongs", NodeKindName(node.kind)));
    }
  }

 private:
  struct Built {
    bool finished = false;
    int height = 0;     // containers on the longest path down, itself included
    size_t values = 0;  // values when everything shared is written out
    TorchValue value;
  };

  [[noreturn]] void Fail(ErrorCode code, const std::string& what) const {
    throw Error(code, fmt::format("{}: {}", where_, what));
  }

  // A string of the pickle may be referred to many times, and each use becomes a copy.
  void CountText(size_t bytes) {
    text_bytes_ += bytes;
    if (text_bytes_ > PickleLimits::kTextBytes) {
      Fail(ErrorCode::kUnsupported,
           fmt::format("more than {} bytes of text", PickleLimits::kTextBytes));
    }
  }

  TorchValue Container(NodeId id, int depth) {
    const auto [entry, is_new] = built_.try_emplace(id);
    Built& built = entry->second;  // stays valid: the map is node-based
    if (is_new) {
      if (depth >= PickleLimits::kDepth) FailDepth();
      Fill(id, depth, built);
      built.finished = true;
    } else if (!built.finished) {
      Fail(ErrorCode::kFormat, "a container contains itself");
    }
    if (depth + built.height > PickleLimits::kDepth) FailDepth();
    return built.value;
  }

  [[noreturn]] void FailDepth() const {
    Fail(ErrorCode::kFormat,
         fmt::format("containers nested more than {} deep", PickleLimits::kDepth));
  }

  void Fill(NodeId id, int depth, Built& built) {
    const PickleNode& node = graph_.nodes[id];
    std::vector<TorchValue> children;
    children.reserve(node.children.size());
    built.height = 1;
    for (const NodeId child : node.children) {
      children.push_back(Convert(child, depth + 1));
      const auto found = built_.find(child);
      built.values += found == built_.end() ? 1 + graph_.nodes[child].text.size() / kTextPerValue
                                            : 1 + found->second.values;
      if (found != built_.end()) built.height = std::max(built.height, 1 + found->second.height);
      if (built.values > PickleLimits::kValues) {
        Fail(ErrorCode::kFormat, fmt::format("more than {} values", PickleLimits::kValues));
      }
    }
    if (node.kind != NodeKind::kDict) {
      built.value.data = std::make_shared<TorchValue::List>(std::move(children));
      return;
    }
    auto dict = std::make_shared<TorchValue::Dict>();
    dict->reserve(children.size() / 2);
    std::unordered_set<std::string> keys;
    for (size_t i = 0; i < children.size(); i += 2) {
      const NodeKind kind = graph_.nodes[node.children[i]].kind;
      if (kind == NodeKind::kList || kind == NodeKind::kDict || kind == NodeKind::kTensor) {
        Fail(ErrorCode::kFormat, fmt::format("a {} as key of a dict", NodeKindName(kind)));
      }
      std::string name = KeyName(children[i]);
      CountText(name.size());
      if (!keys.insert(name).second) {
        Fail(ErrorCode::kFormat, fmt::format("a dict has the key {} twice", name.substr(2)));
      }
      dict->emplace_back(std::move(children[i]), std::move(children[i + 1]));
    }
    built.value.data = std::move(dict);
  }

  // Equal for keys that are equal in Python, where 1 == 1.0 == True.
  std::string KeyName(const TorchValue& key) const {
    if (const auto* text = std::get_if<std::string>(&key.data)) return "s:" + *text;
    if (const auto* integer = std::get_if<int64_t>(&key.data)) return fmt::format("n:{}", *integer);
    if (const auto* flag = std::get_if<bool>(&key.data)) return *flag ? "n:1" : "n:0";
    if (const auto* real = std::get_if<double>(&key.data)) {
      const bool whole = std::trunc(*real) == *real && std::abs(*real) < 0x1p63;
      return whole ? fmt::format("n:{}", static_cast<int64_t>(*real)) : fmt::format("n:{}", *real);
    }
    if (std::holds_alternative<std::monostate>(key.data)) return "o:None";
    if (const auto* list = std::get_if<std::shared_ptr<TorchValue::List>>(&key.data)) {
      std::string name = "t:(";
      for (const TorchValue& item : **list) {
        const std::string part = KeyName(item);
        name += fmt::format("{}:{},", part.size(), part);
        if (name.size() > kMaxKeyBytes) Fail(ErrorCode::kFormat, "a dict key of absurd length");
      }
      return name + ")";
    }
    Fail(ErrorCode::kFormat, "a dict key that is neither number, string nor tuple");
  }

  static constexpr size_t kMaxKeyBytes = size_t{1} << 16;
  static constexpr size_t kTextPerValue = 64;  // so many bytes of text weigh as much as a value
  const PickleGraph& graph_;
  const std::string& where_;
  std::unordered_map<NodeId, Built> built_;
  size_t text_bytes_ = 0;
};

}  // namespace

std::string_view NodeKindName(NodeKind kind) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "None", "bool",   "integer", "float",        "string",           "tuple",    "list",
      "dict", "tensor", "storage", "storage type", "rebuild function", "dict type"};
  return kNames[static_cast<size_t>(kind)];
}

TorchValue BuildTorchValue(const PickleGraph& graph, NodeId root, const std::string& where) {
  return Builder(graph, where).Convert(root, 0);
}

}  // namespace oscar
