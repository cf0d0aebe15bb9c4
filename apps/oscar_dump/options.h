// The options of oscar-dump.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/cli/options.h"
#include "oscar/dump/dump.h"

namespace oscar {

// Targets of the option rows; member values are the defaults.
struct DumpArguments {
  std::string model, token_ids, import_dir, out, model_id, layers;
  std::vector<std::string> text;
  std::string chat_template = "auto", moments = "all", device = "cpu";
  std::string skip_warmup = "auto", prefill_chunk = "auto", dump_budget = "auto";
  int64_t tokens = 0, window = 2048, rows_tokens = 4096, seed = 0, q_heads = 0, kv_heads = 0;
  double softmax_scale = 0;
  bool resume = false, dry_run = false;
};

cli::OptionTable DumpTable(DumpArguments& arguments);
DumpOptions ToOptions(const DumpArguments& arguments, bool force);

}  // namespace oscar
