#include "oscar/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/json_scan.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

[[noreturn]] void Damaged(const fs::path& file, const std::string& what) {
  throw Error(ErrorCode::kFormat, file.string() + ": " + what,
              "the file is truncated, damaged or no safetensors file; fetch it again");
}

struct ElementType {
  std::string_view name;
  uint64_t bits;
  bool supported;
  TensorType type;
};

// The types of the format. Those that are not supported are known so that their ranges can be
// checked: a model may carry an integer buffer that nobody reads.
constexpr ElementType kElementTypes[] = {
    {"F32", 32, true, TensorType::kF32},     {"F16", 16, true, TensorType::kF16},
    {"BF16", 16, true, TensorType::kBF16},   {"F64", 64, false, TensorType::kF32},
    {"I64", 64, false, TensorType::kF32},    {"U64", 64, false, TensorType::kF32},
    {"I32", 32, false, TensorType::kF32},    {"U32", 32, false, TensorType::kF32},
    {"I16", 16, false, TensorType::kF32},    {"U16", 16, false, TensorType::kF32},
    {"I8", 8, false, TensorType::kF32},      {"U8", 8, false, TensorType::kF32},
    {"BOOL", 8, false, TensorType::kF32},    {"F8_E4M3", 8, false, TensorType::kF32},
    {"F8_E5M2", 8, false, TensorType::kF32}, {"F8_E8M0", 8, false, TensorType::kF32},
    {"C64", 64, false, TensorType::kF32}};

const ElementType* FindType(std::string_view name) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

// Parses JSON whose top level is an object without repeated keys.
json ParseObject(std::string_view text, const fs::path& file) {
  constexpr int kDeepest = 16;  // headers need 3; printing a value recurses
  const JsonScan scan = ScanJson(text, kDeepest);
  if (scan.too_deep) Damaged(file, "its header is nested too deeply");
  if (scan.fault) Damaged(file, "its header is not valid JSON: " + *scan.fault);
  json parsed = json::parse(text.begin(), text.end());
  if (!parsed.is_object()) Damaged(file, "its header is not a JSON object");
  if (scan.repeated_at_top) {
    Damaged(file, "tensor " + Quoted(*scan.repeated_at_top) + " is listed twice");
  }
  return parsed;
}

// The list of non-negative integers of a tensor's member.
std::vector<int64_t> Integers(const json& entry, const char* member, const fs::path& file,
                              const std::string& tensor) {
  const auto it = entry.find(member);
  if (it == entry.end() || !it->is_array()) {
    Damaged(file, Message("tensor ", Quoted(tensor), " has no list '", member, "'"));
  }
  std::vector<int64_t> out;
  for (const json& item : *it) {
    constexpr uint64_t kLargest = uint64_t{1} << 62;
    if (!item.is_number_unsigned() || item.get<uint64_t>() > kLargest) {
      Damaged(file, Message("tensor ", Quoted(tensor), ": '", member,
                            "' holds something that is not a size: ", item.dump()));
    }
    out.push_back(static_cast<int64_t>(item.get<uint64_t>()));
  }
  return out;
}

StoredTensor ParseTensor(const std::string& name, const json& entry, const fs::path& file,
                         uint64_t data_begin) {
  if (!entry.is_object()) Damaged(file, "the entry of tensor " + Quoted(name) + " is no object");
  StoredTensor tensor;
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) {
    Damaged(file, "tensor " + Quoted(name) + " has no 'dtype'");
  }
  tensor.type_name = dtype->get<std::string>();
  tensor.shape = Integers(entry, "shape", file, name);
  const std::vector<int64_t> range = Integers(entry, "data_offsets", file, name);
  if (range.size() != 2 || range[0] > range[1]) {
    Damaged(file, "tensor " + Quoted(name) + " has impossible data_offsets " + ShapeText(range));
  }
  tensor.offset = data_begin + static_cast<uint64_t>(range[0]);
  tensor.bytes = static_cast<uint64_t>(range[1] - range[0]);
  const ElementType* type = FindType(tensor.type_name);
  if (type == nullptr) return tensor;  // refused by name where it is used
  tensor.supported = type->supported;
  tensor.type = type->type;
  const int64_t count = ElementCount(tensor.shape);
  const uint64_t element_bytes = type->bits / 8;
  if (count < 0 || tensor.bytes % element_bytes != 0 ||
      tensor.bytes / element_bytes != static_cast<uint64_t>(count)) {
    Damaged(file, Message("tensor ", Quoted(name), " of shape ", ShapeText(tensor.shape),
                          " and type ", type->name, " takes ", tensor.bytes, " bytes"));
  }
  return tensor;
}

// The format has neither gaps nor bytes after the last tensor.
void CheckCoverage(const std::map<std::string, StoredTensor>& tensors, const fs::path& file,
                   uint64_t begin, uint64_t end) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, tensor] : tensors) {
    ranges.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t covered = begin;
  for (const auto& [from, to] : ranges) {
    if (from > covered) {
      Damaged(file, Message("bytes ", covered, " to ", from, " belong to no tensor"));
    }
    covered = std::max(covered, to);
  }
  if (covered < end) Damaged(file, Message("bytes ", covered, " to ", end, " belong to no tensor"));
}

// Tensors of one file, by name, ranges relative to the whole file.
std::map<std::string, StoredTensor> ParseFile(const MappedFile& mapped, size_t index) {
  const fs::path& file = mapped.path();
  const std::span<const uint8_t> bytes = mapped.bytes();
  constexpr uint64_t kLongestHeader = 100'000'000;  // the limit of the format
  uint64_t header_bytes = 0;
  if (bytes.size() < 8) Damaged(file, Message("it has only ", bytes.size(), " bytes"));
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > kLongestHeader || header_bytes > bytes.size() - 8) {
    Damaged(file,
            Message("its header claims ", header_bytes, " bytes, the file has ", bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  const uint64_t data_begin = 8 + header_bytes;
  std::map<std::string, StoredTensor> tensors;
  const json header = ParseObject(text, file);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    StoredTensor tensor = ParseTensor(name, entry, file, data_begin);
    tensor.file = index;
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

// Maps one file and adds its tensors. Returns their names.
std::set<std::string> AddFile(TensorSet& set, const fs::path& file) {
  MappedFile mapped(file);
  const uint64_t size = mapped.bytes().size();
  const size_t index = set.AddFile(std::move(mapped));
  const std::map<std::string, StoredTensor> tensors = ParseFile(set.file(index), index);
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    set.AddTensor(name, tensor);
    names.insert(name);
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, set.file(index).bytes().data(), 8);
  CheckCoverage(tensors, file, 8 + header_bytes, size);
  return names;
}

// tensor -> shard, with every shard a plain file name beside the index.
std::map<std::string, std::string> ReadIndex(const fs::path& file) {
  const std::string text = ReadTextFile(file);
  const json index = ParseObject(text, file);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) Damaged(file, "it has no object 'weight_map'");
  std::map<std::string, std::string> out;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) Damaged(file, "no file is named for tensor " + Quoted(tensor));
    const std::string name = shard.get<std::string>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      Damaged(file, Message("tensor ", Quoted(tensor), " is said to be in ", Quoted(name),
                            ", which is not the name of a file beside the index"));
    }
    out[tensor] = name;
  }
  return out;
}

void AddShards(TensorSet& set, const fs::path& folder, const fs::path& index) {
  std::map<std::string, std::set<std::string>> expected;  // shard -> tensors
  for (const auto& [tensor, shard] : ReadIndex(index)) expected[shard].insert(tensor);
  for (const auto& [shard, tensors] : expected) {
    const fs::path file = folder / shard;
    if (!fs::exists(file)) {
      throw Error(ErrorCode::kIo,
                  Message("shard ", Quoted(shard), " of ", index.string(), " is missing"),
                  "download all files of the model");
    }
    const std::set<std::string> found = AddFile(set, file);
    for (const std::string& tensor : tensors) {
      if (!found.contains(tensor)) {
        Damaged(file, "tensor " + Quoted(tensor) + " is missing, which the index places here");
      }
    }
  }
}

[[noreturn]] void NoWeights(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      throw Error(ErrorCode::kUnsupported,
                  Message(folder.string(), " holds weights as ", entry.path().filename().string(),
                          ", not as safetensors"),
                  "load the model once with transformers and save it with save_pretrained");
    }
    if (extension == ".gguf") {
      throw Error(ErrorCode::kUsage,
                  Message(folder.string(), " holds no model.safetensors but a GGUF file"),
                  "give the file itself: " + entry.path().string());
    }
  }
  throw Error(ErrorCode::kIo,
              folder.string() + " holds neither model.safetensors nor model.safetensors.index.json",
              "give a folder as Hugging Face publishes it, or a .gguf file");
}

}  // namespace

TensorSet OpenSafetensors(const fs::path& folder) {
  TensorSet set;
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(single)) {
    AddFile(set, single);
  } else if (fs::exists(index)) {
    AddShards(set, folder, index);
  } else {
    NoWeights(folder);
  }
  set.CheckOverlaps();
  return set;
}

}  // namespace oscar
