#include "oscar/torchfile/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"
#include "oscar/torchfile/extent.h"
#include "oscar/torchfile/pickle_graph.h"
#include "oscar/torchfile/pickle_opcodes.h"
#include "oscar/torchfile/utf8.h"

namespace oscar {
namespace {

// Typed storage classes of torch whose elements we have a DType for.
constexpr std::array<std::pair<std::string_view, DType>, 10> kStorageTypes = {{
    {"DoubleStorage", DType::kF64},
    {"FloatStorage", DType::kF32},
    {"HalfStorage", DType::kF16},
    {"BFloat16Storage", DType::kBF16},
    {"LongStorage", DType::kI64},
    {"IntStorage", DType::kI32},
    {"ShortStorage", DType::kI16},
    {"CharStorage", DType::kI8},
    {"ByteStorage", DType::kU8},
    {"BoolStorage", DType::kBool},
}};

class Machine {
 public:
  Machine(std::span<const uint8_t> pickle, const std::string& where, const StorageLoader& load)
      : pickle_(pickle), where_(where), load_(load) {}

  TorchValue Run() {
    if (pickle_.size() > PickleLimits::kBytes) {
      Fail(ErrorCode::kUnsupported, fmt::format("a pickle of {} bytes; at most {} are read",
                                                pickle_.size(), PickleLimits::kBytes));
    }
    if (pickle_.empty() || pickle_[0] != static_cast<uint8_t>(Op::kProto)) {
      Fail(ErrorCode::kFormat, "expected a pickle of protocol 2 to 5");
    }
    while (Step()) {
    }
    if (stack_.size() != 1 || !marks_.empty()) {
      Fail(ErrorCode::kFormat, fmt::format("{} values left at the end, expected 1", stack_.size()));
    }
    if (at_ != pickle_.size()) {
      Fail(ErrorCode::kFormat, fmt::format("{} bytes after the end", pickle_.size() - at_));
    }
    return BuildTorchValue(graph_, stack_.back(), where_);
  }

 private:
  [[noreturn]] void Fail(ErrorCode code, const std::string& what, std::string hint = "") const {
    throw Error(code, fmt::format("{}, pickle offset {}: {}", where_, op_at_, what),
                std::move(hint));
  }

  // --- input
  std::span<const uint8_t> Take(uint64_t count) {
    if (count > pickle_.size() - at_) Fail(ErrorCode::kFormat, "the pickle ends too early");
    const auto part = pickle_.subspan(at_, count);
    at_ += count;
    return part;
  }
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view TakeText(uint64_t count) {
    const auto part = Take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string_view TakeLine() {
    const auto rest = pickle_.subspan(at_);
    const auto end = std::find(rest.begin(), rest.end(), '\n');
    if (end == rest.end()) Fail(ErrorCode::kFormat, "the pickle ends too early");
    const auto line = TakeText(static_cast<uint64_t>(end - rest.begin()));
    ++at_;
    return line;
  }

  // --- stack and graph
  NodeId Add(PickleNode node) {
    if (graph_.nodes.size() + links_ >= PickleLimits::kValues) FailCount();
    graph_.nodes.push_back(std::move(node));
    return static_cast<NodeId>(graph_.nodes.size() - 1);
  }
  void Push(NodeId id) {
    if (stack_.size() >= PickleLimits::kValues) FailCount();
    stack_.push_back(id);
  }
  void PushMark() {
    if (marks_.size() >= PickleLimits::kValues) FailCount();
    marks_.push_back(stack_.size());
  }
  void PushNew(NodeKind kind, int64_t integer = 0) {
    PickleNode node;
    node.kind = kind;
    node.integer = integer;
    Push(Add(std::move(node)));
  }
  void PushFloat(double real) {
    PushNew(NodeKind::kFloat);
    Top().real = real;
  }
  void PushText(std::string_view text) {
    if (!IsUtf8(text)) Fail(ErrorCode::kFormat, "a string that is not UTF-8");
    PushNew(NodeKind::kString);
    Top().text = text;
  }
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  NodeId Pop() {
    if (stack_.size() <= Floor()) Fail(ErrorCode::kFormat, "the stack is empty");
    const NodeId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  PickleNode& Top() {
    if (stack_.size() <= Floor()) Fail(ErrorCode::kFormat, "the stack is empty");
    return graph_.nodes[stack_.back()];
  }
  std::vector<NodeId> PopToMark() {
    if (marks_.empty()) Fail(ErrorCode::kFormat, "no mark on the stack");
    std::vector<NodeId> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<NodeId> PopCount(size_t count) {
    std::vector<NodeId> items(count);
    for (size_t i = count; i-- > 0;) items[i] = Pop();
    return items;
  }
  [[noreturn]] void FailCount() const {
    Fail(ErrorCode::kUnsupported, fmt::format("more than {} values", PickleLimits::kValues));
  }
  void CountLinks(size_t count) {
    links_ += count;
    if (graph_.nodes.size() + links_ > PickleLimits::kValues) FailCount();
  }
  void PushTuple(std::vector<NodeId> items) {
    CountLinks(items.size());
    PushNew(NodeKind::kTuple);
    Top().children = std::move(items);
  }
  void Extend(NodeKind kind, const std::vector<NodeId>& items) {
    PickleNode& target = Top();
    if (target.kind != kind) {
      Fail(ErrorCode::kFormat, fmt::format("items are added to a {}, expected a {}",
                                           NodeKindName(target.kind), NodeKindName(kind)));
    }
    if (kind == NodeKind::kDict && items.size() % 2 != 0) {
      Fail(ErrorCode::kFormat, "a dict key without a value");
    }
    CountLinks(items.size());
    target.children.insert(target.children.end(), items.begin(), items.end());
  }
  void Remember(uint32_t slot) {
    Top();
    if (memo_.size() >= PickleLimits::kValues) FailCount();
    memo_[slot] = stack_.back();
  }
  void Recall(uint32_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) Fail(ErrorCode::kFormat, fmt::format("no memo entry {}", slot));
    Push(found->second);
  }

  // --- opcodes
  bool Step();
  void PushLong(std::span<const uint8_t> bytes);
  void PushGlobal(std::string_view module, std::string_view name);
  void PushStackGlobal();
  void Reduce();
  void Build();
  void LoadPersistent();

  // --- tensors
  const PickleNode& Expect(NodeId id, NodeKind kind, std::string_view what) const;
  int64_t ExpectCount(NodeId id, std::string_view what) const;
  std::vector<int64_t> ExpectCounts(NodeId id, std::string_view what) const;
  void RebuildTensor(const std::vector<NodeId>& args);

  std::span<const uint8_t> pickle_;
  const std::string& where_;
  const StorageLoader& load_;
  uint64_t at_ = 0;     // next byte
  uint64_t op_at_ = 0;  // current opcode, for messages
  PickleGraph graph_;
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::unordered_map<uint32_t, NodeId> memo_;
  std::unordered_map<std::string, size_t> storage_index_;
  size_t links_ = 0;  // children of all containers
};

// Executes one opcode; false after STOP.
bool Machine::Step() {
  op_at_ = at_;
  const auto op = static_cast<Op>(Take<uint8_t>());
  switch (op) {
    case Op::kProto: {
      const int version = Take<uint8_t>();
      if (version < 2 || version > 5) {
        Fail(ErrorCode::kUnsupported, fmt::format("pickle protocol {}, expected 2 to 5", version));
      }
      return true;
    }
    case Op::kFrame:
      Take<uint64_t>();
      return true;  // a hint for buffering only
    case Op::kStop:
      return false;
    case Op::kMark:
      PushMark();
      return true;
    case Op::kPop:
      if (!marks_.empty() && stack_.size() == marks_.back()) {
        marks_.pop_back();  // as in Python, POP removes a mark on top
      } else {
        Pop();
      }
      return true;
    case Op::kPopMark:
      PopToMark();
      return true;
    case Op::kNone:
      PushNew(NodeKind::kNone);
      return true;
    case Op::kNewTrue:
      PushNew(NodeKind::kBool, 1);
      return true;
    case Op::kNewFalse:
      PushNew(NodeKind::kBool, 0);
      return true;
    case Op::kBinInt:
      PushNew(NodeKind::kInt, Take<int32_t>());
      return true;
    case Op::kBinInt1:
      PushNew(NodeKind::kInt, Take<uint8_t>());
      return true;
    case Op::kBinInt2:
      PushNew(NodeKind::kInt, Take<uint16_t>());
      return true;
    case Op::kLong1:
      PushLong(Take(Take<uint8_t>()));
      return true;
    case Op::kLong4:
      PushLong(Take(Take<uint32_t>()));
      return true;
    case Op::kBinFloat:
      PushFloat(std::bit_cast<double>(__builtin_bswap64(Take<uint64_t>())));
      return true;
    case Op::kShortBinUnicode:
      PushText(TakeText(Take<uint8_t>()));
      return true;
    case Op::kBinUnicode:
      PushText(TakeText(Take<uint32_t>()));
      return true;
    case Op::kBinUnicode8:
      PushText(TakeText(Take<uint64_t>()));
      return true;
    case Op::kEmptyList:
      PushNew(NodeKind::kList);
      return true;
    case Op::kEmptyDict:
      PushNew(NodeKind::kDict);
      return true;
    case Op::kEmptyTuple:
      PushNew(NodeKind::kTuple);
      return true;
    case Op::kTuple1:
      PushTuple(PopCount(1));
      return true;
    case Op::kTuple2:
      PushTuple(PopCount(2));
      return true;
    case Op::kTuple3:
      PushTuple(PopCount(3));
      return true;
    case Op::kTuple:
      PushTuple(PopToMark());
      return true;
    case Op::kAppend:
      Extend(NodeKind::kList, PopCount(1));
      return true;
    case Op::kAppends:
      Extend(NodeKind::kList, PopToMark());
      return true;
    case Op::kSetItem:
      Extend(NodeKind::kDict, PopCount(2));
      return true;
    case Op::kSetItems:
      Extend(NodeKind::kDict, PopToMark());
      return true;
    case Op::kBinPut:
      Remember(Take<uint8_t>());
      return true;
    case Op::kLongBinPut:
      Remember(Take<uint32_t>());
      return true;
    case Op::kMemoize:
      Remember(static_cast<uint32_t>(memo_.size()));
      return true;
    case Op::kBinGet:
      Recall(Take<uint8_t>());
      return true;
    case Op::kLongBinGet:
      Recall(Take<uint32_t>());
      return true;
    case Op::kGlobal: {
      const std::string_view module = TakeLine();
      PushGlobal(module, TakeLine());
      return true;
    }
    case Op::kStackGlobal:
      PushStackGlobal();
      return true;
    case Op::kReduce:
      Reduce();
      return true;
    case Op::kBuild:
      Build();
      return true;
    case Op::kBinPersId:
      LoadPersistent();
      return true;
    default:
      break;
  }
  const std::string_view name = OpcodeName(static_cast<uint8_t>(op));
  if (name.empty()) {
    Fail(ErrorCode::kFormat, fmt::format("unknown opcode 0x{:02x}", static_cast<uint8_t>(op)));
  }
  Fail(ErrorCode::kUnsupported, fmt::format("opcode {} is refused", name),
       "only dicts, lists, tuples, numbers, strings and tensors are read");
}

// Little-endian two's complement of any length; zero bytes mean 0.
void Machine::PushLong(std::span<const uint8_t> bytes) {
  if (bytes.size() > sizeof(int64_t)) {
    Fail(ErrorCode::kUnsupported, "an integer of more than 64 bits");
  }
  uint64_t bits = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  for (size_t i = bytes.size(); i-- > 0;) bits = (bits << 8) | bytes[i];
  PushNew(NodeKind::kInt, std::bit_cast<int64_t>(bits));
}

void Machine::PushGlobal(std::string_view module, std::string_view name) {
  if (module == "collections" && name == "OrderedDict") return PushNew(NodeKind::kOrderedDict);
  if (module == "torch._utils" && name == "_rebuild_tensor_v2") {
    return PushNew(NodeKind::kRebuildTensor);
  }
  if (module == "torch") {
    for (const auto& [type, dtype] : kStorageTypes) {
      if (name == type) return PushNew(NodeKind::kStorageType, static_cast<int64_t>(dtype));
    }
  }
  std::string hint =
      "nothing was executed; only plain containers, numbers, strings and tensors "
      "are read";
  if (module.starts_with("numpy")) {
    hint = "convert NumPy values with float(x), int(x) or torch.from_numpy(x) before torch.save";
  } else if (module == "torch" && name.ends_with("Storage")) {
    hint = "convert the tensor to float32, bfloat16 or another real type before torch.save";
  }
  Fail(ErrorCode::kUnsupported,
       fmt::format("refused global {}.{}", Printable(module), Printable(name)), std::move(hint));
}

void Machine::PushStackGlobal() {
  const PickleNode& name = Expect(Pop(), NodeKind::kString, "name of a global");
  const PickleNode& module = Expect(Pop(), NodeKind::kString, "module of a global");
  // Copies of the views: pushing may move the nodes.
  const std::string_view module_text = module.text;
  const std::string_view name_text = name.text;
  PushGlobal(module_text, name_text);
}

void Machine::Reduce() {
  const std::vector<NodeId> args = Expect(Pop(), NodeKind::kTuple, "arguments of a call").children;
  const NodeKind callee = graph_.nodes[Pop()].kind;
  if (callee == NodeKind::kOrderedDict) {
    if (!args.empty()) Fail(ErrorCode::kUnsupported, "OrderedDict with arguments");
    return PushNew(NodeKind::kDict);
  }
  if (callee != NodeKind::kRebuildTensor) {
    Fail(ErrorCode::kFormat, fmt::format("a call of a {}", NodeKindName(callee)));
  }
  RebuildTensor(args);
}

// state_dict() gives its OrderedDict an attribute `_metadata`; attributes carry no content of ours.
void Machine::Build() {
  Expect(Pop(), NodeKind::kDict, "state of an object");
  if (Top().kind != NodeKind::kDict) Fail(ErrorCode::kUnsupported, "state for a non-dict");
}

// ('storage', torch.<Type>Storage, key, location, elements)
void Machine::LoadPersistent() {
  const std::vector<NodeId> id = Expect(Pop(), NodeKind::kTuple, "a storage reference").children;
  if (id.size() != 5 || Expect(id[0], NodeKind::kString, "a storage tag").text != "storage") {
    Fail(ErrorCode::kFormat, "a reference that names no storage");
  }
  PickleStorage storage;
  storage.dtype =
      static_cast<DType>(Expect(id[1], NodeKind::kStorageType, "type of a storage").integer);
  storage.key = Expect(id[2], NodeKind::kString, "key of a storage").text;
  Expect(id[3], NodeKind::kString, "location of a storage");  // any device is read to memory
  storage.elements = ExpectCount(id[4], "size of a storage");
  const auto [entry, is_new] = storage_index_.try_emplace(storage.key, graph_.storages.size());
  if (is_new) {
    storage.bytes = load_(storage.key, storage.dtype, storage.elements);
    graph_.storages.push_back(std::move(storage));
  } else {
    const PickleStorage& known = graph_.storages[entry->second];
    if (known.dtype != storage.dtype || known.elements != storage.elements) {
      Fail(ErrorCode::kFormat,
           fmt::format("storage {} is {} x {} here and {} x {} elsewhere", Printable(storage.key),
                       storage.elements, DTypeName(storage.dtype), known.elements,
                       DTypeName(known.dtype)));
    }
  }
  PushNew(NodeKind::kStorage, static_cast<int64_t>(entry->second));
}

const PickleNode& Machine::Expect(NodeId id, NodeKind kind, std::string_view what) const {
  const PickleNode& node = graph_.nodes[id];
  if (node.kind != kind) {
    Fail(ErrorCode::kFormat, fmt::format("{}: expected a {}, found a {}", what, NodeKindName(kind),
                                         NodeKindName(node.kind)));
  }
  return node;
}

int64_t Machine::ExpectCount(NodeId id, std::string_view what) const {
  const int64_t count = Expect(id, NodeKind::kInt, what).integer;
  if (count < 0) Fail(ErrorCode::kFormat, fmt::format("{} is {}, below zero", what, count));
  return count;
}

std::vector<int64_t> Machine::ExpectCounts(NodeId id, std::string_view what) const {
  const PickleNode& tuple = Expect(id, NodeKind::kTuple, what);
  if (tuple.children.size() > PickleLimits::kRank) {
    Fail(ErrorCode::kUnsupported, fmt::format("a tensor of {} dimensions", tuple.children.size()));
  }
  std::vector<int64_t> counts;
  for (const NodeId child : tuple.children) counts.push_back(ExpectCount(child, what));
  return counts;
}

// (storage, offset, shape, strides, requires_grad, backward_hooks[, metadata])
void Machine::RebuildTensor(const std::vector<NodeId>& args) {
  if (args.size() < 6 || args.size() > 7) {
    Fail(ErrorCode::kFormat, fmt::format("a tensor with {} arguments, expected 6", args.size()));
  }
  const auto index =
      static_cast<size_t>(Expect(args[0], NodeKind::kStorage, "storage of a tensor").integer);
  const PickleStorage& storage = graph_.storages[index];
  TorchTensor tensor;
  tensor.dtype = storage.dtype;
  tensor.storage_offset = ExpectCount(args[1], "offset of a tensor");
  tensor.shape = ExpectCounts(args[2], "shape of a tensor");
  tensor.strides = ExpectCounts(args[3], "strides of a tensor");
  Expect(args[4], NodeKind::kBool, "requires_grad");
  tensor.storage_elements = storage.elements;
  tensor.storage_key = storage.key;
  tensor.owner = storage.bytes.owner;
  tensor.storage = storage.bytes.bytes.data();
  const std::string misfit = DescribeMisfit(tensor);
  if (!misfit.empty()) Fail(ErrorCode::kFormat, misfit);
  graph_.tensors.push_back(std::move(tensor));
  PushNew(NodeKind::kTensor, static_cast<int64_t>(graph_.tensors.size() - 1));
}

}  // namespace

TorchValue UnpickleTorch(std::span<const uint8_t> pickle, const std::string& where,
                         const StorageLoader& load) {
  return Machine(pickle, where, load).Run();
}

}  // namespace oscar
