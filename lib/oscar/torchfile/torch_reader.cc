// ReadTorchFile: finds the parts of a torch archive and joins pickle and storages.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"
#include "oscar/torchfile/pickle_reader.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/torchfile/zip_reader.h"

namespace oscar {
namespace {

constexpr std::string_view kPickleName = "data.pkl";

// The member <root>/data.pkl, whatever the root is called.
const ZipMember& FindPickle(const ZipReader& zip) {
  const ZipMember* pickle = nullptr;
  for (const ZipMember& member : zip.members()) {
    const bool matches = member.name == kPickleName || member.name.ends_with("/data.pkl");
    if (!matches) continue;
    if (pickle != nullptr) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: two members called data.pkl ({} and {})", zip.path().string(),
                              Printable(pickle->name), Printable(member.name)));
    }
    pickle = &member;
  }
  if (pickle == nullptr) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{}: a zip archive without a member data.pkl is no torch.save file",
                            zip.path().string()));
  }
  return *pickle;
}

// Content of a small text member, or nullopt when it is absent.
std::optional<std::string> ReadSmall(ZipReader& zip, const std::string& name) {
  constexpr uint64_t kLongest = 64;
  const ZipMember* member = zip.Find(name);
  if (member == nullptr) return std::nullopt;
  if (member->bytes > kLongest) {
    zip.Fail(ErrorCode::kFormat, name, member->data_offset,
             fmt::format("{} bytes, expected a word", member->bytes));
  }
  const OwnedBytes content = zip.Read(*member, true, 1);
  return std::string(content.bytes.begin(), content.bytes.end());
}

void CheckByteOrder(ZipReader& zip, const std::string& root) {
  const auto order = ReadSmall(zip, root + "byteorder");
  if (order && *order != "little") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: byte order \"{}\", only \"little\" is read", zip.path().string(),
                            *order == "big" ? "big" : "?"));
  }
}

OwnedBytes LoadStorage(ZipReader& zip, const std::string& root, bool check_crc,
                       const std::string& key, DType dtype, int64_t elements) {
  const std::string name = root + "data/" + key;
  const ZipMember* member = zip.Find(name);
  if (member == nullptr) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{}: the pickle refers to storage {}, but there is no member {}",
                            zip.path().string(), Printable(key), Printable(name)));
  }
  const size_t width = DTypeSize(dtype);
  // torch.save rounds the count down when a storage is viewed in a wider type than its bytes fill.
  if (member->bytes / width != static_cast<uint64_t>(elements)) {
    zip.Fail(ErrorCode::kFormat, name, member->data_offset,
             fmt::format("{} bytes, expected {} x {}", member->bytes, elements, DTypeName(dtype)));
  }
  return zip.Read(*member, check_crc, width);
}

}  // namespace

TorchValue ReadTorchFile(const std::filesystem::path& path, const TorchReadOptions& options) {
  ZipReader zip(path);
  const ZipMember& pickle = FindPickle(zip);
  const std::string root = pickle.name.substr(0, pickle.name.size() - kPickleName.size());
  if (zip.Find(root + "constants.pkl") != nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: this is a TorchScript program, not a torch.save file", path.string()));
  }
  CheckByteOrder(zip, root);
  if (pickle.bytes > PickleLimits::kBytes) {
    zip.Fail(ErrorCode::kUnsupported, pickle.name, pickle.data_offset,
             fmt::format("a pickle of {} bytes; at most {} are read", pickle.bytes,
                         PickleLimits::kBytes));
  }
  const OwnedBytes bytes = zip.Read(pickle, true, 1);
  const std::string where = fmt::format("{}: member {}", path.string(), Printable(pickle.name));
  return UnpickleTorch(
      bytes.bytes, where, [&](const std::string& key, DType dtype, int64_t elements) {
        return LoadStorage(zip, root, options.check_storage_crc, key, dtype, elements);
      });
}

const TorchValue* TorchValue::Find(const std::string& key) const {
  const auto* dict = std::get_if<std::shared_ptr<Dict>>(&data);
  if (dict == nullptr) return nullptr;
  for (const auto& [name, value] : **dict) {
    const auto* text = std::get_if<std::string>(&name.data);
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

}  // namespace oscar
