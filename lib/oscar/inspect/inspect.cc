#include "oscar/inspect/inspect.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/inspect/commands.h"

namespace oscar {
namespace {

[[noreturn]] void FailUsage(const std::string& what) { throw Error(ErrorCode::kUsage, what); }

void CheckOptions(const InspectOptions& options) {
  const auto& commands = InspectCommands();
  if (std::find(commands.begin(), commands.end(), options.command) == commands.end()) {
    FailUsage(
        fmt::format("unknown command '{}'; known: {}", options.command, fmt::join(commands, ", ")));
  }
  const size_t count = options.inputs.size();
  if (options.command == "diff" && count != 2) {
    FailUsage(fmt::format("diff takes two files or two folders, found {}", count));
  }
  if (options.command == "env" && count != 1) {
    FailUsage(fmt::format("env takes one zoo folder, found {}", count));
  }
  if (count == 0) FailUsage(options.command + " takes rotation files or zoo folders, found none");
  if (options.command == "env" && options.engine.empty()) {
    FailUsage(fmt::format("env needs --engine; known: {}", fmt::join(InspectEngines(), ", ")));
  }
  if (options.command != "env" && (!options.engine.empty() || options.absorb_v)) {
    FailUsage("--engine and --absorb-v belong to env");
  }
  if (options.command != "validate" && !options.traces.empty()) {
    FailUsage("--traces belongs to validate");
  }
  for (const auto& input : options.inputs) {
    if (!std::filesystem::exists(input)) {
      throw Error(ErrorCode::kIo, fmt::format("{}: no such file or folder", input.string()));
    }
  }
}

}  // namespace

const std::vector<std::string>& InspectCommands() {
  static const std::vector<std::string> kCommands = {"show", "validate", "env", "diff"};
  return kCommands;
}

const std::vector<std::string>& InspectEngines() {
  static const std::vector<std::string> kEngines = {"sglang", "vllm", "llamacpp"};
  return kEngines;
}

Value NewRecord(const std::string& command) {
  Value record;
  record["schema"] = "oscar.zoo-report/1";
  record["command"] = command;
  return record;
}

InspectReport RunInspect(const InspectOptions& options, const RunContext& context) {
  CheckOptions(options);
  if (options.command == "show") return ShowZoo(options.inputs);
  if (options.command == "validate") return ValidateZoo(options.inputs, options.traces, context);
  if (options.command == "diff") return DiffZoo(options.inputs[0], options.inputs[1]);
  return EnvironmentOf(options.inputs[0], options.engine, options.absorb_v);
}

}  // namespace oscar
