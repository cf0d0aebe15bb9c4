// Zoo folders: finding, reading and writing the pair with its manifest.
#include "oscar/zoo/entry.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/core/printable.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "manifest.json";
constexpr const char* kSchema = "oscar.zoo/1";

[[noreturn]] void Fail(ErrorCode code, const fs::path& where, const std::string& what,
                       std::string hint = "") {
  throw Error(code, fmt::format("{}: {}", where.string(), what), std::move(hint));
}

std::vector<std::string> NamesWithPrefix(const fs::path& folder, const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with(prefix) && name.ends_with(".pt")) {
      names.push_back(name);
    }
  }
  if (error) Fail(ErrorCode::kIo, folder, "cannot list the folder: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// The first folder below that holds a K file; empty when there is none near.
fs::path EntryBelow(const fs::path& folder) {
  constexpr int kDeepest = 2;  // rotation_zoo/<model>/<tag>
  std::vector<fs::path> found;
  std::error_code ignored;  // this only looks for a hint
  for (fs::recursive_directory_iterator it(folder, ignored), end; it != end;
       it.increment(ignored)) {
    if (it.depth() >= kDeepest) it.disable_recursion_pending();
    const std::string name = it->path().filename().string();
    if (it.depth() > 0 && name.starts_with("k_") && name.ends_with(".pt")) {
      found.push_back(it->path().parent_path());
    }
  }
  return found.empty() ? fs::path() : *std::min_element(found.begin(), found.end());
}

fs::path FindByName(const fs::path& folder, const char* prefix, const char* side) {
  const std::vector<std::string> names = NamesWithPrefix(folder, prefix);
  if (names.empty()) {
    const fs::path below = EntryBelow(folder);
    Fail(ErrorCode::kFormat, folder,
         fmt::format("no {} file ({}*.pt): {}", side, prefix,
                     below.empty() ? "the pair is incomplete" : "entries are in folders below it"),
         below.empty() ? "" : "name the folder of one entry, such as " + below.string());
  }
  if (names.size() > 1) {
    Fail(ErrorCode::kFormat, folder,
         fmt::format("{} {} files ({}), expected one", names.size(), side, fmt::join(names, ", ")),
         "keep one pair per folder");
  }
  return folder / names.front();
}

// Checks name, size and hash of one file of the manifest before the file is opened.
fs::path FindByManifest(const fs::path& folder, const Value& manifest, const char* side) {
  const fs::path where = folder / kManifestName;
  const Value* files = manifest.Find("files");
  const Value* file = files == nullptr ? nullptr : files->Find(side);
  const Value* name = file == nullptr ? nullptr : file->Find("name");
  const Value* hash = file == nullptr ? nullptr : file->Find("sha256");
  if (name == nullptr || hash == nullptr || !name->is_string() || !hash->is_string()) {
    Fail(ErrorCode::kFormat, where, fmt::format("no files.{} with name and sha256", side));
  }
  const fs::path relative = name->AsString();
  if (relative.empty() || relative != relative.filename()) {
    Fail(
        ErrorCode::kFormat, where,
        fmt::format("files.{}.name is \"{}\", expected a plain file name", side, name->AsString()));
  }
  const fs::path path = folder / relative;
  if (!fs::is_regular_file(path)) {
    Fail(ErrorCode::kFormat, folder,
         fmt::format("{} is missing, the manifest names it: the pair is incomplete",
                     relative.string()));
  }
  const std::string found = Sha256File(path.string());
  if (found != hash->AsString()) {
    Fail(ErrorCode::kMismatch, path,
         fmt::format("sha256 {}, the manifest says {}", found, hash->AsString()),
         "the file was changed or damaged after it was written; write the entry again");
  }
  return path;
}

std::optional<Value> ReadManifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  if (!fs::exists(path)) return std::nullopt;
  Value manifest = Value::FromJson(ReadTextFile(path), path.string());
  const Value* schema = manifest.Find("schema");
  if (schema == nullptr || *schema != Value(kSchema)) {
    Fail(ErrorCode::kUnsupported, path,
         fmt::format("schema {}, expected \"{}\"", schema == nullptr ? "missing" : schema->ToJson(),
                     kSchema));
  }
  return manifest;
}

void CheckSides(const ZooFile& key, const fs::path& key_path, const ZooFile& value,
                const fs::path& value_path) {
  const bool key_wrong = SideOfObjective(key.objective) == ZooSide::kValue;
  const bool value_wrong = SideOfObjective(value.objective) == ZooSide::kKey;
  if (key_wrong) {
    Fail(ErrorCode::kMismatch, key_path,
         fmt::format("objective \"{}\" is one of values, but this is the K file{}",
                     Printable(key.objective), value_wrong ? ": K and V are swapped" : ""));
  }
  if (value_wrong) {
    Fail(ErrorCode::kMismatch, value_path,
         fmt::format("objective \"{}\" is one of keys, but this is the V file",
                     Printable(value.objective)));
  }
}

void CheckGeneration(const ZooEntry& entry) {
  const auto generation = [](const ZooFile& file) -> const Value* {
    const Value* calibration = file.extra.Find("calibration");
    return calibration == nullptr ? nullptr : calibration->Find("generation_id");
  };
  const Value* key = generation(entry.key);
  const Value* value = generation(entry.value);
  const bool same = (key == nullptr) == (value == nullptr) && (key == nullptr || *key == *value);
  if (!same) {
    Fail(ErrorCode::kMismatch, entry.folder,
         fmt::format("K has generation_id {}, V has {}: they are from different calibrations",
                     key == nullptr ? "none" : key->ToJson(),
                     value == nullptr ? "none" : value->ToJson()));
  }
}

std::optional<double> ClipOf(const ZooEntry& entry, const char* side, int64_t layer) {
  const Value* clip = entry.manifest ? entry.manifest->Find("clip") : nullptr;
  const Value* table = clip == nullptr ? nullptr : clip->Find(side);
  for (const auto& [name, part] :
       {std::pair{std::string("clip"), clip}, std::pair{fmt::format("clip.{}", side), table}}) {
    if (part == nullptr || part->is_null() || part->is_object()) continue;
    Fail(ErrorCode::kFormat, entry.folder / kManifestName,
         fmt::format("{} is {}, expected an object", name, part->ToJson()));
  }
  const Value* ratio = table == nullptr ? nullptr : table->Find(fmt::format("{}", layer));
  if (ratio == nullptr || ratio->is_null()) return std::nullopt;
  if (!ratio->is_number() || !(ratio->AsDouble() > 0 && ratio->AsDouble() <= 1)) {
    Fail(ErrorCode::kFormat, entry.folder / kManifestName,
         fmt::format("clip.{}[\"{}\"] is {}, expected a number in (0, 1]", side, layer,
                     ratio->ToJson()));
  }
  return ratio->AsDouble();
}

Value Describe(const fs::path& path) {
  return Value::Object{{"name", path.filename().string()},
                       {"bytes", static_cast<int64_t>(fs::file_size(path))},
                       {"sha256", Sha256File(path.string())}};
}

}  // namespace

std::optional<double> ZooEntry::KeyClip(int64_t layer) const { return ClipOf(*this, "key", layer); }

std::optional<double> ZooEntry::ValueClip(int64_t layer) const {
  return ClipOf(*this, "value", layer);
}

std::string ZooEntry::Tag() const {
  fs::path name = fs::absolute(folder).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return name.filename().string();
}

ZooEntry ReadZooEntry(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    Fail(ErrorCode::kIo, folder, fs::exists(folder) ? "is no folder" : "no such folder");
  }
  ZooEntry entry;
  entry.folder = folder;
  entry.manifest = ReadManifest(folder);
  if (entry.manifest) {
    entry.key_path = FindByManifest(folder, *entry.manifest, "key");
    entry.value_path = FindByManifest(folder, *entry.manifest, "value");
  } else {
    entry.key_path = FindByName(folder, "k_", "K");
    entry.value_path = FindByName(folder, "v_", "V");
  }
  entry.key = ReadZooFile(entry.key_path);
  entry.value = ReadZooFile(entry.value_path);
  CheckSides(entry.key, entry.key_path, entry.value, entry.value_path);
  CheckGeneration(entry);
  return entry;
}

void RequireReplaceableEntry(const fs::path& folder) {
  if (!fs::is_directory(folder)) Fail(ErrorCode::kIo, folder, "is no folder");
  for (const auto& file : fs::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    const bool rotation =
        (name.starts_with("k_") || name.starts_with("v_")) && name.ends_with(".pt");
    if (file.is_regular_file() && (rotation || name == kManifestName)) continue;
    Fail(ErrorCode::kIo, folder, "cannot be replaced: " + name + " is no part of a zoo entry",
         "choose another folder, or remove this one yourself");
  }
}

void WriteZooEntry(const fs::path& folder, const ZooFile& key, const ZooFile& value,
                   const std::string& key_name, const std::string& value_name, Value manifest,
                   bool force) {
  OSCAR_CHECK(key_name.starts_with("k_") && key_name.ends_with(".pt"));
  OSCAR_CHECK(value_name.starts_with("v_") && value_name.ends_with(".pt"));
  CheckSides(key, folder / key_name, value, folder / value_name);
  if (fs::exists(folder) && !force) {
    Fail(ErrorCode::kIo, folder, "exists already", "choose another folder or pass --force");
  }
  if (fs::exists(folder)) RequireReplaceableEntry(folder);
  const fs::path temporary = TemporarySibling(folder);
  std::error_code error;
  fs::remove_all(temporary, error);  // left by a run that was killed
  fs::create_directories(temporary, error);
  if (error) Fail(ErrorCode::kIo, temporary, "cannot create the folder: " + error.message());
  TemporaryGuard guard(temporary);
  WriteZooFile(temporary / key_name, key);
  WriteZooFile(temporary / value_name, value);
  manifest["schema"] = kSchema;
  manifest["files"] = Value::Object{{"key", Describe(temporary / key_name)},
                                    {"value", Describe(temporary / value_name)}};
  WriteTextFile(temporary / kManifestName, manifest.ToJson(2) + "\n");
  Publish(temporary, folder, force);
  guard.Keep();
}

}  // namespace oscar
