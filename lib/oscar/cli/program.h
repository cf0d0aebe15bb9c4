// The frame of every program: parse, run, print, exit code.
#pragma once

#include <functional>
#include <string>

#include "oscar/cli/options.h"
#include "oscar/core/progress.h"
#include "oscar/core/value.h"

namespace oscar::cli {

// What a use case gives back to be printed.
struct Outcome {
  std::string text;    // stdout without --json
  Value json;          // stdout with --json
  bool passed = true;  // false: exit code 1 (the verdict is no)
};

// Names the libraries linked into this program for --version, for example {"LibTorch", "2.11.0"}.
using LibraryVersions = std::vector<std::pair<std::string, std::string>>;

// Adds the common options to `table`, parses, installs the SIGINT/SIGTERM handler and runs `body`
// with effective options. Exit codes: 0 done, 1 verdict no, 2 usage, 3 failed, 130 interrupted.
// Never throws.
int RunProgram(int argc, char** argv, OptionTable& table, const LibraryVersions& libraries,
               const std::function<Outcome(const CommonOptions&, const RunContext&)>& body);

}  // namespace oscar::cli
