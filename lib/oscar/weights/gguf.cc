#include "oscar/weights/gguf.h"

#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Numbers of the metadata value types.
enum ValueKind : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12
};

struct GgmlType {
  uint32_t number;
  const char* name;
  bool supported;
  TensorType type;
};

// Numbers of the tensor types; those that are not supported are listed to be refused by name.
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", true, TensorType::kF32},       {1, "F16", true, TensorType::kF16},
    {2, "Q4_0", true, TensorType::kQ4_0},     {3, "Q4_1", true, TensorType::kQ4_1},
    {6, "Q5_0", true, TensorType::kQ5_0},     {7, "Q5_1", true, TensorType::kQ5_1},
    {8, "Q8_0", true, TensorType::kQ8_0},     {9, "Q8_1", false, TensorType::kF32},
    {10, "Q2_K", false, TensorType::kF32},    {11, "Q3_K", false, TensorType::kF32},
    {12, "Q4_K", true, TensorType::kQ4K},     {13, "Q5_K", true, TensorType::kQ5K},
    {14, "Q6_K", true, TensorType::kQ6K},     {15, "Q8_K", false, TensorType::kF32},
    {16, "IQ2_XXS", false, TensorType::kF32}, {17, "IQ2_XS", false, TensorType::kF32},
    {18, "IQ3_XXS", false, TensorType::kF32}, {19, "IQ1_S", false, TensorType::kF32},
    {20, "IQ4_NL", false, TensorType::kF32},  {21, "IQ3_S", false, TensorType::kF32},
    {22, "IQ2_S", false, TensorType::kF32},   {23, "IQ4_XS", false, TensorType::kF32},
    {24, "I8", false, TensorType::kF32},      {25, "I16", false, TensorType::kF32},
    {26, "I32", false, TensorType::kF32},     {27, "I64", false, TensorType::kF32},
    {28, "F64", false, TensorType::kF32},     {29, "IQ1_M", false, TensorType::kF32},
    {30, "BF16", true, TensorType::kBF16},    {34, "TQ1_0", false, TensorType::kF32},
    {35, "TQ2_0", false, TensorType::kF32},   {39, "MXFP4", false, TensorType::kF32}};

const GgmlType* FindGgmlType(uint32_t number) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

// Smallest encoding of a value of this kind, 0 for an unknown kind.
uint64_t SmallestBytes(uint32_t kind) {
  switch (kind) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kString:
    case kUint64:
    case kInt64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

// Reads the header front to back; every read is checked against the end of the file.
class HeaderReader {
 public:
  explicit HeaderReader(const MappedFile& file) : bytes_(file.bytes()), path_(file.path()) {}

  // What is being read, for messages: "key 'llama.block_count'".
  void Describe(std::string what) { what_ = std::move(what); }
  uint64_t position() const { return at_; }
  uint64_t remaining() const { return bytes_.size() - at_; }

  [[noreturn]] void Damaged(const std::string& problem) const {
    throw Error(ErrorCode::kFormat, Message(path_.string(), ": ", what_, ": ", problem),
                "the file is truncated or damaged; fetch it again");
  }

  template <typename T>
  T Scalar() {
    if (remaining() < sizeof(T)) Damaged(Message("the file ends at byte ", bytes_.size()));
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string String() {
    const auto length = Scalar<uint64_t>();
    if (length > remaining()) {
      Damaged(Message("a text of ", length, " bytes does not fit in the file"));
    }
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  // A value that is no array.
  Value Plain(uint32_t kind) {
    switch (kind) {
      case kUint8:
        return int64_t{Scalar<uint8_t>()};
      case kInt8:
        return int64_t{Scalar<int8_t>()};
      case kUint16:
        return int64_t{Scalar<uint16_t>()};
      case kInt16:
        return int64_t{Scalar<int16_t>()};
      case kUint32:
        return int64_t{Scalar<uint32_t>()};
      case kInt32:
        return int64_t{Scalar<int32_t>()};
      case kFloat32:
        return double{Scalar<float>()};
      case kBool:
        return Scalar<uint8_t>() != 0;
      case kString:
        return String();
      case kUint64: {
        const auto value = Scalar<uint64_t>();
        if (value > static_cast<uint64_t>(INT64_MAX)) Damaged(Message(value, " is too large"));
        return static_cast<int64_t>(value);
      }
      case kInt64:
        return Scalar<int64_t>();
      case kFloat64:
        return Scalar<double>();
      default:
        Damaged(Message("unknown value type ", kind));
    }
  }

  Value Any() {
    const auto kind = Scalar<uint32_t>();
    if (kind != kArray) return Plain(kind);
    const auto item_kind = Scalar<uint32_t>();
    const auto count = Scalar<uint64_t>();
    if (item_kind == kArray) Damaged("arrays of arrays are not supported");
    const uint64_t smallest = SmallestBytes(item_kind);
    if (smallest == 0) Damaged(Message("unknown value type ", item_kind));
    if (count > remaining() / smallest) {
      Damaged(Message("an array of ", count, " values does not fit in the file"));
    }
    Value::Array items;
    items.reserve(count);
    for (uint64_t i = 0; i < count; ++i) items.push_back(Plain(item_kind));
    return items;
  }

 private:
  std::span<const uint8_t> bytes_;
  fs::path path_;
  std::string what_;
  uint64_t at_ = 0;
};

struct Counts {
  uint64_t tensors = 0;
  uint64_t keys = 0;
};

Counts ReadPreamble(HeaderReader& reader, const fs::path& path) {
  reader.Describe("header");
  const auto magic = reader.Scalar<uint32_t>();
  if (magic != 0x46554747U) {  // "GGUF"
    throw Error(ErrorCode::kFormat, path.string() +
                                        " is not a GGUF file: it does not start with "
                                        "the letters GGUF");
  }
  const auto version = reader.Scalar<uint32_t>();
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= 3) {
    throw Error(ErrorCode::kUnsupported, path.string() + " is a big-endian GGUF file");
  }
  if (version != 2 && version != 3) {
    throw Error(ErrorCode::kUnsupported,
                Message(path.string(), " has GGUF version ", version, "; 2 and 3 are supported"));
  }
  Counts counts;
  counts.tensors = reader.Scalar<uint64_t>();
  counts.keys = reader.Scalar<uint64_t>();
  // A key takes at least 13 bytes and a tensor 24: counts beyond that are no counts.
  if (counts.keys > reader.remaining() / 13 || counts.tensors > reader.remaining() / 24) {
    reader.Damaged(
        Message(counts.keys, " keys and ", counts.tensors, " tensors do not fit in the file"));
  }
  return counts;
}

Value ReadMetadata(HeaderReader& reader, uint64_t count) {
  Value::Object metadata;
  reader.Describe("metadata");
  for (uint64_t i = 0; i < count; ++i) {
    reader.Describe(Message("metadata key ", i));
    std::string key = reader.String();
    reader.Describe("metadata key " + Quoted(key));
    Value value = reader.Any();
    if (!metadata.emplace(std::move(key), std::move(value)).second) {
      reader.Damaged("the key is there twice");
    }
  }
  return metadata;
}

// One entry of the tensor table; `offset` is still relative to the data section.
StoredTensor ReadTensorEntry(HeaderReader& reader) {
  const auto dims = reader.Scalar<uint32_t>();
  if (dims == 0 || dims > 4) reader.Damaged(Message("it has ", dims, " dimensions, not 1 to 4"));
  StoredTensor tensor;
  tensor.shape.resize(dims);
  for (size_t i = dims; i-- > 0;) {
    const auto size = reader.Scalar<uint64_t>();
    if (size > static_cast<uint64_t>(INT64_MAX)) reader.Damaged(Message("a dimension of ", size));
    tensor.shape[i] = static_cast<int64_t>(size);
  }
  const auto number = reader.Scalar<uint32_t>();
  tensor.offset = reader.Scalar<uint64_t>();
  const GgmlType* type = FindGgmlType(number);
  tensor.type_name = type != nullptr ? type->name : Message("number ", number);
  if (type == nullptr || !type->supported) return tensor;
  tensor.supported = true;
  tensor.type = type->type;
  const int64_t count = ElementCount(tensor.shape);
  if (count < 0) reader.Damaged("impossible shape " + ShapeText(tensor.shape));
  if (tensor.shape.back() % BlockValues(tensor.type) != 0) {
    reader.Damaged(Message("rows of ", tensor.shape.back(), " values cannot be stored as ",
                           type->name, ", whose blocks have ", BlockValues(tensor.type)));
  }
  const auto blocks = static_cast<uint64_t>(count / BlockValues(tensor.type));
  const auto block_bytes = static_cast<uint64_t>(BlockBytes(tensor.type));
  if (blocks > UINT64_MAX / 2 / block_bytes) reader.Damaged("it is larger than any file");
  tensor.bytes = blocks * block_bytes;
  return tensor;
}

uint64_t Alignment(const Value& metadata, const fs::path& path) {
  const Value* value = metadata.Find("general.alignment");
  if (value == nullptr) return 32;
  const int64_t alignment = value->is_int() ? value->AsInt() : 0;
  if (alignment < 1 || alignment > (1 << 30) ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    throw Error(
        ErrorCode::kFormat,
        Message(path.string(), ": general.alignment is not a power of two: ", value->ToJson()));
  }
  return static_cast<uint64_t>(alignment);
}

void RefuseSplit(const Value& metadata, const fs::path& path) {
  const Value* count = metadata.Find("split.count");
  if (count == nullptr || !count->is_int() || count->AsInt() <= 1) return;
  throw Error(
      ErrorCode::kUnsupported,
      Message(path.string(), " is one of the ", count->AsInt(), " parts of a split GGUF file"),
      "join the parts first: llama-gguf-split --merge FIRST-PART WHOLE.gguf");
}

}  // namespace

GgufFile OpenGguf(const fs::path& path) {
  GgufFile out;
  const size_t index = out.tensors.AddFile(MappedFile(path));
  const MappedFile& file = out.tensors.file(index);
  HeaderReader reader(file);
  const Counts counts = ReadPreamble(reader, path);
  out.metadata = ReadMetadata(reader, counts.keys);
  RefuseSplit(out.metadata, path);
  const uint64_t alignment = Alignment(out.metadata, path);

  std::vector<std::pair<std::string, StoredTensor>> entries;
  for (uint64_t i = 0; i < counts.tensors; ++i) {
    reader.Describe(Message("tensor ", i));
    std::string name = reader.String();
    reader.Describe("tensor " + Quoted(name));
    StoredTensor tensor = ReadTensorEntry(reader);
    if (tensor.offset % alignment != 0) {
      reader.Damaged(Message("its offset ", tensor.offset, " is not a multiple of ", alignment));
    }
    entries.emplace_back(std::move(name), std::move(tensor));
  }
  // The data section starts at the next multiple of the alignment.
  const uint64_t data = (reader.position() + alignment - 1) / alignment * alignment;
  for (auto& [name, tensor] : entries) {
    reader.Describe("tensor " + Quoted(name));
    if (tensor.offset > file.bytes().size()) {
      reader.Damaged(Message("its offset ", tensor.offset, " lies beyond the file"));
    }
    tensor.file = index;
    tensor.offset += data;
    out.tensors.AddTensor(name, std::move(tensor));
  }
  out.tensors.CheckOverlaps();
  return out;
}

}  // namespace oscar
