// The object graph while a pickle is being read. Nodes refer to each other by index, so that
// neither cycles nor deep nesting can harm before they are noticed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/torchfile/pickle_reader.h"

namespace oscar {

using NodeId = uint32_t;

enum class NodeKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kTuple,
  kList,
  kDict,         // children alternate: key, value, key, value
  kTensor,       // integer: index of the tensor
  kStorage,      // integer: index of the storage
  kStorageType,  // integer: DType
  kRebuildTensor,
  kOrderedDict,  // the callable; its result is a kDict
};

std::string_view NodeKindName(NodeKind kind);

struct PickleNode {
  NodeKind kind = NodeKind::kNone;
  int64_t integer = 0;    // kBool, kInt and indices
  double real = 0;        // kFloat
  std::string_view text;  // kString; lies in the pickle
  std::vector<NodeId> children;
};

// A storage of the file.
struct PickleStorage {
  std::string key;
  DType dtype = DType::kF32;
  int64_t elements = 0;
  OwnedBytes bytes;
};

struct PickleGraph {
  std::vector<PickleNode> nodes;
  std::vector<PickleStorage> storages;
  std::vector<TorchTensor> tensors;
};

// Turns the graph below `root` into a value. Throws Error with `where` for cycles, nesting and
// expansion beyond the limits, duplicate or unusable dict keys, and callables used as values.
TorchValue BuildTorchValue(const PickleGraph& graph, NodeId root, const std::string& where);

}  // namespace oscar
