// WriteTorchFile: the members of a torch archive in the order of torch.save.
#include <fmt/format.h>

#include <string>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/torchfile/pickle_writer.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/torchfile/zip_writer.h"

namespace oscar {
namespace {

constexpr size_t kSerializationIdDigits = 40;

// torch.save names the content of an archive by 40 decimal digits made of hashes of member names
// and CRCs; any function of the content will do.
std::string SerializationId(const std::string& names, const std::vector<uint32_t>& crcs) {
  std::string text = names;
  for (const uint32_t crc : crcs) text += fmt::format("{:08x}", crc);
  std::string digits;
  for (const char c : Sha256Hex(text).substr(0, kSerializationIdDigits)) {
    digits += static_cast<char>('0' + (c >= 'a' ? c - 'a' : c - '0') % 10);
  }
  return digits;
}

}  // namespace

void WriteTorchFile(const std::filesystem::path& path, const TorchOut& value,
                    const std::string& root) {
  OSCAR_CHECK(!root.empty() && root.find('/') == std::string::npos);
  const PickledTorchValue pickled = PickleTorch(value);
  ZipWriter zip(path);
  std::string names;
  const auto add = [&](const std::string& name, auto content) {
    names += name + "\n";
    zip.Add(root + "/" + name, content);
  };
  add("data.pkl", std::string_view(pickled.pickle));
  add(".format_version", std::string_view("1"));
  add(".storage_alignment", std::string_view("64"));
  add("byteorder", std::string_view("little"));
  for (size_t i = 0; i < pickled.storages.size(); ++i) {
    add(fmt::format("data/{}", i), pickled.storages[i]);
  }
  add("version", std::string_view("3\n"));
  add(".data/serialization_id", std::string_view(SerializationId(names, zip.Crcs())));
  zip.Finish();
}

}  // namespace oscar
