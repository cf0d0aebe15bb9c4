// The commands of oscar-zoo, each from inputs to a record and its text.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/inspect/inspect.h"

namespace oscar {

InspectReport ShowZoo(const std::vector<std::filesystem::path>& inputs);
InspectReport ValidateZoo(const std::vector<std::filesystem::path>& inputs,
                          const std::vector<std::filesystem::path>& traces,
                          const RunContext& context);
InspectReport DiffZoo(const std::filesystem::path& a, const std::filesystem::path& b);
InspectReport EnvironmentOf(const std::filesystem::path& folder, const std::string& engine,
                            bool absorb_v);

// A record with schema and command filled in.
Value NewRecord(const std::string& command);

}  // namespace oscar
