#include "oscar/torchfile/pickle_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/torchfile/pickle_opcodes.h"

namespace oscar {
namespace {

std::string_view StorageClass(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "DoubleStorage";
    case DType::kF32:
      return "FloatStorage";
    case DType::kF16:
      return "HalfStorage";
    case DType::kBF16:
      return "BFloat16Storage";
    case DType::kI64:
      return "LongStorage";
    case DType::kI32:
      return "IntStorage";
    case DType::kI16:
      return "ShortStorage";
    case DType::kI8:
      return "CharStorage";
    case DType::kU8:
      return "ByteStorage";
    case DType::kBool:
      return "BoolStorage";
  }
  OSCAR_CHECK(false);
}

// Emits what CPython's pickler would: every string, container and call result gets the next memo
// slot, and a second use of the same thing becomes a reference to its slot.
class Pickler {
 public:
  PickledTorchValue Run(const TorchOut& value) {
    Emit(Op::kProto);
    Byte(2);
    Put(value);
    Emit(Op::kStop);
    return std::move(result_);
  }

 private:
  // Items are added in batches of at most so many; as in CPython, only a container of one item
  // gets the short form.
  static constexpr size_t kBatch = 1000;

  void Emit(Op op) { Byte(static_cast<uint8_t>(op)); }
  void Byte(uint64_t value) { result_.pickle += static_cast<char>(value & 0xff); }
  void Little(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) Byte(value >> (8 * i));
  }
  uint32_t Memoize() {
    const uint32_t slot = slots_++;
    const bool is_short = slot < 256;
    Emit(is_short ? Op::kBinPut : Op::kLongBinPut);
    Little(slot, is_short ? 1 : 4);
    return slot;
  }
  // True when `key` is in `memo`; emits the reference.
  template <typename Key>
  bool Recall(const std::map<Key, uint32_t>& memo, const Key& key) {
    const auto found = memo.find(key);
    if (found == memo.end()) return false;
    const bool is_short = found->second < 256;
    Emit(is_short ? Op::kBinGet : Op::kLongBinGet);
    Little(found->second, is_short ? 1 : 4);
    return true;
  }

  void Put(const TorchOut& value) {
    std::visit([this](const auto& x) { PutOne(x); }, value.data);
  }
  void PutOne(std::monostate) { Emit(Op::kNone); }
  void PutOne(bool x) { Emit(x ? Op::kNewTrue : Op::kNewFalse); }
  void PutOne(int64_t x);
  void PutOne(double x) {
    Emit(Op::kBinFloat);
    const uint64_t bits = __builtin_bswap64(std::bit_cast<uint64_t>(x));
    Little(bits, 8);
  }
  void PutOne(const std::string& text) {
    if (Recall(strings_, text)) return;
    OSCAR_CHECK(text.size() <= std::numeric_limits<uint32_t>::max());
    Emit(Op::kBinUnicode);
    Little(text.size(), 4);
    result_.pickle += text;
    strings_[text] = Memoize();
  }
  void PutOne(const std::shared_ptr<TorchOut::List>& list);
  void PutOne(const std::shared_ptr<TorchOut::Dict>& dict);
  void PutOne(const TorchTensorData& tensor);
  void PutGlobal(const std::string& module, const std::string& name);
  void PutCounts(const std::vector<int64_t>& counts);
  void PutStorage(const TorchTensorData& tensor);

  PickledTorchValue result_;
  uint32_t slots_ = 0;
  std::map<std::string, uint32_t> strings_, globals_;
  std::map<const void*, uint32_t> containers_;
  // Tensors and storages are told apart by where their bytes lie.
  using StorageId = std::pair<std::pair<const void*, size_t>, DType>;
  std::map<std::pair<StorageId, std::vector<int64_t>>, uint32_t> tensors_;
  std::map<StorageId, size_t> storages_;
};

void Pickler::PutOne(int64_t x) {
  if (x >= 0 && x < 256) {
    Emit(Op::kBinInt1);
    return Byte(static_cast<uint64_t>(x));
  }
  const auto bits = static_cast<uint64_t>(x);
  if (x >= 0 && x < 65536) {
    Emit(Op::kBinInt2);
    return Little(bits, 2);
  }
  if (x >= std::numeric_limits<int32_t>::min() && x <= std::numeric_limits<int32_t>::max()) {
    Emit(Op::kBinInt);
    return Little(bits, 4);
  }
  // The shortest two's complement that keeps the sign.
  int bytes = 8;
  while (bytes > 1 && (x >> (8 * (bytes - 1) - 1)) == (x < 0 ? -1 : 0)) --bytes;
  Emit(Op::kLong1);
  Byte(static_cast<uint64_t>(bytes));
  Little(bits, bytes);
}

void Pickler::PutOne(const std::shared_ptr<TorchOut::List>& list) {
  OSCAR_CHECK(list != nullptr);
  if (Recall(containers_, static_cast<const void*>(list.get()))) return;
  Emit(Op::kEmptyList);
  containers_[list.get()] = Memoize();
  for (size_t begin = 0; begin < list->size(); begin += kBatch) {
    const size_t end = std::min(list->size(), begin + kBatch);
    const bool single = list->size() == 1;
    if (!single) Emit(Op::kMark);
    for (size_t i = begin; i < end; ++i) Put((*list)[i]);
    Emit(single ? Op::kAppend : Op::kAppends);
  }
}

void Pickler::PutOne(const std::shared_ptr<TorchOut::Dict>& dict) {
  OSCAR_CHECK(dict != nullptr);
  if (Recall(containers_, static_cast<const void*>(dict.get()))) return;
  Emit(Op::kEmptyDict);
  containers_[dict.get()] = Memoize();
  for (size_t begin = 0; begin < dict->size(); begin += kBatch) {
    const size_t end = std::min(dict->size(), begin + kBatch);
    const bool single = dict->size() == 1;
    if (!single) Emit(Op::kMark);
    for (size_t i = begin; i < end; ++i) {
      Put((*dict)[i].first);
      Put((*dict)[i].second);
    }
    Emit(single ? Op::kSetItem : Op::kSetItems);
  }
}

void Pickler::PutGlobal(const std::string& module, const std::string& name) {
  const std::string lines = module + "\n" + name + "\n";
  if (Recall(globals_, lines)) return;
  Emit(Op::kGlobal);
  result_.pickle += lines;
  globals_[lines] = Memoize();
}

// A tuple of ints; CPython memoizes all but the empty one.
void Pickler::PutCounts(const std::vector<int64_t>& counts) {
  if (counts.empty()) return Emit(Op::kEmptyTuple);
  if (counts.size() > 3) Emit(Op::kMark);
  for (const int64_t count : counts) PutOne(count);
  switch (counts.size()) {
    case 1:
      Emit(Op::kTuple1);
      break;
    case 2:
      Emit(Op::kTuple2);
      break;
    case 3:
      Emit(Op::kTuple3);
      break;
    default:
      Emit(Op::kTuple);
      break;
  }
  Memoize();
}

void Pickler::PutStorage(const TorchTensorData& tensor) {
  // Empty tensors share no bytes whatever their address says.
  const StorageId id{{tensor.bytes.data(), tensor.bytes.size()}, tensor.dtype};
  size_t index = result_.storages.size();
  const auto found = storages_.find(id);
  if (!tensor.bytes.empty() && found != storages_.end()) {
    index = found->second;
  } else {
    result_.storages.push_back(tensor.bytes);
    storages_[id] = index;
  }
  Emit(Op::kMark);
  PutOne(std::string("storage"));
  PutGlobal("torch", std::string(StorageClass(tensor.dtype)));
  PutOne(fmt::format("{}", index));
  PutOne(std::string("cpu"));
  PutOne(static_cast<int64_t>(tensor.bytes.size() / DTypeSize(tensor.dtype)));
  Emit(Op::kTuple);
  Memoize();
  Emit(Op::kBinPersId);
}

void Pickler::PutOne(const TorchTensorData& tensor) {
  std::vector<int64_t> strides(tensor.shape.size(), 1);
  int64_t elements = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    OSCAR_CHECK(tensor.shape[i] >= 0);
    strides[i] = std::max<int64_t>(elements, 1);  // strides of empty tensors, as in PyTorch
    elements *= std::max<int64_t>(tensor.shape[i], 1);
  }
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  OSCAR_CHECK(tensor.bytes.size() ==
              (empty ? 0 : static_cast<size_t>(elements) * DTypeSize(tensor.dtype)));
  const std::pair key{StorageId{{tensor.bytes.data(), tensor.bytes.size()}, tensor.dtype},
                      tensor.shape};
  if (!empty && Recall(tensors_, key)) return;
  PutGlobal("torch._utils", "_rebuild_tensor_v2");
  Emit(Op::kMark);
  PutStorage(tensor);
  PutOne(int64_t{0});  // offset
  PutCounts(tensor.shape);
  PutCounts(strides);
  PutOne(false);                            // requires_grad
  PutGlobal("collections", "OrderedDict");  // backward hooks
  Emit(Op::kEmptyTuple);
  Emit(Op::kReduce);
  Memoize();
  Emit(Op::kTuple);
  Memoize();
  Emit(Op::kReduce);
  tensors_[key] = Memoize();
}

}  // namespace

PickledTorchValue PickleTorch(const TorchOut& value) { return Pickler().Run(value); }

}  // namespace oscar
