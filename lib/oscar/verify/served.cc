#include "oscar/verify/served.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/error.h"

namespace oscar {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // of the command line, too

[[noreturn]] void Refuse(const ZooEntry& entry, const std::string& key, const Value& found) {
  throw Error(ErrorCode::kFormat, fmt::format("{}: manifest.json: {} is {}", entry.folder.string(),
                                              key, found.ToJson()));
}

const Value* StatedIn(const ZooEntry& entry, std::string_view section, const std::string& key) {
  const Value* at = entry.manifest ? &*entry.manifest : nullptr;
  if (at != nullptr && !section.empty()) {
    at = at->Find(std::string(section));
    if (at != nullptr && !at->is_object()) Refuse(entry, std::string(section), *at);
  }
  if (at != nullptr) at = at->Find(key);
  return at != nullptr && at->is_null() ? nullptr : at;
}

std::optional<int64_t> CountIn(const ZooEntry& entry, std::string_view section,
                               const std::string& key) {
  const Value* const found = StatedIn(entry, section, key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_int() || found->AsInt() < 0 || found->AsInt() > kMost) Refuse(entry, key, *found);
  return found->AsInt();
}

std::optional<ScaleType> ScaleTypeIn(const ZooEntry& entry) {
  const Value* const found = StatedIn(entry, "", "scale_dtype");
  if (found == nullptr) return std::nullopt;
  const std::optional<ScaleType> type =
      found->is_string() ? ScaleTypeFromName(found->AsString()) : std::nullopt;
  if (!type) Refuse(entry, "scale_dtype", *found);
  return type;
}

std::string Text(int64_t value) { return fmt::format("{}", value); }
std::string Text(ScaleType type) { return std::string(ScaleTypeName(type)); }

// `read` gives an entry's own value.
template <typename T, typename Read>
void ApplyOne(const char* option, const std::optional<T>& asked, const EntrySet& set,
              const Read& read, T& value, std::vector<std::string>& notes) {
  std::optional<T> common;
  size_t first = 0;
  for (size_t i = 0; i < set.entries.size() && !asked; ++i) {
    const std::optional<T> own = read(set.entries[i]);
    if (own && common && *own != *common) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{} was made for --{} {}, but {} for {}", set.tags[first], option,
                              Text(*common), set.tags[i], Text(*own)),
                  fmt::format("give --{}, or verify them one by one", option));
    }
    if (!own || common) continue;
    common = own;
    first = i;
  }
  if (asked || common) value = asked ? *asked : *common;
  for (size_t i = 0; i < set.entries.size(); ++i) {
    const std::optional<T> own = read(set.entries[i]);
    if (!own || *own == value) continue;
    notes.push_back(fmt::format("{} was made for --{} {}, measured with {}", set.tags[i], option,
                                Text(*own), Text(value)));
  }
}

}  // namespace

void ApplyServed(const ServedSettings& asked, const EntrySet& entries, MethodSettings& method,
                 std::vector<std::string>& notes) {
  const auto window = [](const char* key) {
    return [key](const ZooEntry& entry) { return CountIn(entry, "windows", key); };
  };
  // Manifests leave out what is 1.
  const auto flush = [](const ZooEntry& entry) -> std::optional<int64_t> {
    if (StatedIn(entry, "", "windows") == nullptr) return std::nullopt;
    return std::max<int64_t>(CountIn(entry, "windows", "flush").value_or(1), 1);
  };
  if (method.use_windows) {
    ApplyOne("sink", asked.sink, entries, window("sink"), method.windows.sink, notes);
    ApplyOne("recent", asked.recent, entries, window("recent"), method.windows.recent, notes);
    ApplyOne("flush", asked.flush, entries, flush, method.windows.flush, notes);
  } else {
    method.windows.sink = asked.sink.value_or(method.windows.sink);
    method.windows.recent = asked.recent.value_or(method.windows.recent);
    method.windows.flush = asked.flush.value_or(method.windows.flush);
  }
  ApplyOne(
      "group-size", asked.group_size, entries,
      [](const ZooEntry& entry) { return CountIn(entry, "", "group_size"); }, method.group_size,
      notes);
  ApplyOne("scale-dtype", asked.scale_type, entries, ScaleTypeIn, method.scale_type, notes);
}

}  // namespace oscar
