// Which runs of oscar-calibrate write the files of an official case, and what such files look like.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/stats/moments.h"
#include "oscar/torchfile/torchfile.h"
#include "support/official_case.h"

namespace oscar::test {

struct Recipe {
  std::optional<Target> key, value;  // none: data-free
  std::string composition;
};

inline std::string NameOf(const std::optional<Target>& target) {
  return target ? std::string(TargetName(*target)) : "none";
}

// "k_rotation_qqt_r_h_pbr"; data-free sides are always plain Hadamard matrices.
inline std::string FileOf(char side, const std::optional<Target>& target,
                          const std::string& composition) {
  return side + std::string("_rotation_") +
         (target ? NameOf(target) + "_" + composition : std::string("hadamard"));
}

// The fewest runs that write every official file of a case, and one of the exact V target.
inline std::vector<Recipe> RecipesOf(const OfficialCase& official) {
  std::vector<Recipe> recipes = {{Target::kQqt, Target::kSvsv, "r_h_pbr"}};
  std::map<std::string, std::vector<std::optional<Target>>> keys, values;
  for (const std::string& file : official.RotationFiles()) {
    auto& side = file.front() == 'k' ? keys : values;
    const std::string rest = file.substr(std::string("k_rotation_").size());
    const size_t end = rest.find('_');
    if (end == std::string::npos) {
      side[rest].push_back(std::nullopt);
    } else {
      side[rest.substr(end + 1)].push_back(TargetFromName(rest.substr(0, end)));
    }
    keys[end == std::string::npos ? rest : rest.substr(end + 1)];
  }
  for (auto& [composition, k] : keys) {
    auto& v = values[composition];
    std::sort(k.begin(), k.end());
    std::sort(v.begin(), v.end());
    for (size_t i = 0; i < std::max(k.size(), v.size()); ++i) {
      recipes.push_back(
          {i < k.size() ? k[i] : std::nullopt, i < v.size() ? v[i] : std::nullopt, composition});
    }
  }
  return recipes;
}

// Keys, plain values, and of tensors all but their elements.
inline std::string Structure(const TorchValue& value) {
  if (const auto* dict = std::get_if<std::shared_ptr<TorchValue::Dict>>(&value.data)) {
    std::string text = "{";
    for (const auto& [key, member] : **dict)
      text += Structure(key) + ": " + Structure(member) + " ";
    return text + "}";
  }
  if (const auto* tensor = std::get_if<TorchTensor>(&value.data)) {
    std::string text = std::string(DTypeName(tensor->dtype)) + (tensor->contiguous() ? "" : "'");
    for (const int64_t size : tensor->shape) text += " " + std::to_string(size);
    return text;
  }
  if (const auto* text = std::get_if<std::string>(&value.data)) return '"' + *text + '"';
  if (const auto* number = std::get_if<int64_t>(&value.data)) return std::to_string(*number);
  return "other";
}

}  // namespace oscar::test
