// Options of oscar-zoo.
#pragma once

#include <string>
#include <vector>

#include "oscar/cli/options.h"
#include "oscar/inspect/inspect.h"

namespace oscar {

// Command line as parsed: the targets of the option table.
struct ZooOptions {
  std::vector<std::string> words;  // command, then files and folders
  std::vector<std::string> traces;
  std::string engine;
  bool absorb_v = false;
};

cli::OptionTable MakeZooTable(ZooOptions& options);

// Throws Error(kUsage) when no command is given.
InspectOptions ToInspectOptions(const ZooOptions& options);

}  // namespace oscar
