// The use case of oscar-zoo: looking at rotation files and zoo folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/core/value.h"

namespace oscar {

struct InspectOptions {
  std::string command;                        // a name of InspectCommands()
  std::vector<std::filesystem::path> inputs;  // rotation files and zoo folders
  std::vector<std::filesystem::path> traces;  // validate: recover and check the provenance
  std::string engine;                         // env: a name of InspectEngines()
  bool absorb_v = false;                      // env: fold the V rotation into v_proj
};

const std::vector<std::string>& InspectCommands();
const std::vector<std::string>& InspectEngines();

// One object of schema "oscar.zoo-report/1" (docs/formats/zoo-report.md) and the same as text.
struct InspectReport {
  Value record;
  std::string text;
  bool passed = true;  // validate: no error; diff: equal or equivalent
};

// Throws Error(kUsage) when command, inputs and options do not fit together. `validate` turns
// whatever is wrong with the content of a file into findings; the other commands throw the reader's
// Error(kFormat / kUnsupported / kMismatch). Missing files are Error(kIo) in all of them.
InspectReport RunInspect(const InspectOptions& options, const RunContext& context);

}  // namespace oscar
