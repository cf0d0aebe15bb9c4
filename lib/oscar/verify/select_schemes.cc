#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "oscar/core/error.h"
#include "oscar/quant/packing.h"
#include "oscar/verify/verify_traces.h"

namespace oscar {
namespace {

bool IsAll(const std::vector<std::string>& names) {
  return names.size() == 1 && names.front() == "all";
}

// The table's name of a scheme: the part before ":<tag>".
std::string MethodPart(const std::string& name) { return name.substr(0, name.find(':')); }

void CheckNames(const std::vector<std::string>& names) {
  if (names.empty()) throw Error(ErrorCode::kUsage, "no scheme was named", "try --schemes all");
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name == "all" && names.size() > 1) {
      throw Error(ErrorCode::kUsage, "scheme 'all' stands for every scheme and takes no company");
    }
    if (name != "all") MethodFromName(MethodPart(name));
    if (!seen.insert(name).second) {
      throw Error(ErrorCode::kUsage, fmt::format("scheme '{}' is named twice", name));
    }
  }
}

// One scheme per entry for methods that need rotations, else one.
std::vector<KvScheme> BuildRow(const MethodRow& row, const std::map<int, LayerShape>& layers,
                               const MethodSettings& settings,
                               const std::vector<ModelRotations>& rotations) {
  std::vector<KvScheme> schemes;
  if (!row.needs_rotations) {
    schemes.push_back(BuildScheme(row, layers, settings, nullptr));
  } else if (rotations.empty()) {
    throw Error(ErrorCode::kUsage, fmt::format("scheme {} needs rotations", row.name),
                "give a zoo entry with --zoo");
  }
  if (row.needs_rotations) {
    for (const ModelRotations& entry : rotations) {
      schemes.push_back(BuildScheme(row, layers, settings, &entry));
    }
  }
  return schemes;
}

}  // namespace

void RequireSchemesFit(const std::vector<std::string>& names,
                       const std::map<int, LayerShape>& layers, const std::string& where) {
  if (names == std::vector<std::string>{"bf16"}) return;
  RequirePackable(layers, where);
}

std::vector<KvScheme> SelectSchemes(const std::vector<std::string>& names,
                                    const std::map<int, LayerShape>& layers,
                                    const MethodSettings& settings,
                                    const std::vector<ModelRotations>& rotations,
                                    std::vector<std::string>& notes) {
  CheckNames(names);
  std::vector<KvScheme> selected;
  std::set<std::string> unmatched(names.begin(), names.end());
  for (const MethodRow& row : MethodTable()) {
    const std::string method(row.name);
    const bool wanted = IsAll(names) || std::ranges::any_of(names, [&](const std::string& name) {
                          return MethodPart(name) == method;
                        });
    if (!wanted) continue;
    std::vector<KvScheme> built;
    try {
      built = BuildRow(row, layers, settings, rotations);
    } catch (const Error& error) {
      // What the entries were made for cannot be left out, nor what everything is compared with.
      const bool needed = row.name == "bf16" || (row.name == "oscar" && !rotations.empty());
      if (!IsAll(names) || error.code() != ErrorCode::kUsage || needed) throw;
      notes.push_back(fmt::format("scheme {} was left out: {}", row.name, error.what()));
      continue;
    }
    for (KvScheme& scheme : built) {
      const bool by_method = IsAll(names) || std::ranges::find(names, method) != names.end();
      const bool by_name = std::ranges::find(names, scheme.name) != names.end();
      if (!by_method && !by_name) continue;
      unmatched.erase(method);
      unmatched.erase(scheme.name);
      selected.push_back(std::move(scheme));
    }
  }
  unmatched.erase("all");
  if (!unmatched.empty()) {
    throw Error(ErrorCode::kUsage, fmt::format("no zoo entry for scheme '{}'", *unmatched.begin()));
  }
  return selected;
}

}  // namespace oscar
