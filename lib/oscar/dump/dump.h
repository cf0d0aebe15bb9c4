// The use case of oscar-dump: a model and some text, or a folder of official dumps, become a trace.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/core/value.h"

namespace oscar {

// Tokens of text where nothing is said.
inline constexpr int64_t kDefaultTextTokens = 16384;

struct DumpOptions {
  // A model's run: `model` and exactly one of `text`, `token_ids`.
  std::filesystem::path model;              // Hugging Face folder or .gguf file
  std::vector<std::filesystem::path> text;  // .txt, .jsonl, .csv
  std::filesystem::path token_ids;          // text, JSON or HDF5
  std::string chat_template = "auto";
  int64_t window = 2048;  // tokens of one packed sequence of text
  std::string device = "cpu";

  // An import: `import_dir` with the model's head counts.
  std::filesystem::path import_dir;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  std::string skip_warmup = "auto";    // auto, yes, no
  std::string prefill_chunk = "auto";  // auto, none or tokens: the server's prefill chunk
  std::string dump_budget = "auto";    // auto, none or tokens: the budget that ended the dump
  double softmax_scale = 0;            // 0: 1 / sqrt(D_k)

  std::string model_id;        // name for the manifest; empty: the model's own
  int64_t tokens = 0;          // 0: 16384 of text, all of token ids and imports
  int64_t rows_tokens = 4096;  // rows are kept for the first whole sequences up to so many tokens
  std::string moments = "all";
  std::string layers;  // "0-3,7"; empty: all
  uint64_t seed = 0;   // shuffles the choices of GPQA questions
  bool resume = false;
  bool force = false;
  bool dry_run = false;
  std::filesystem::path out;
};

// What a run needs. Bytes and seconds; seconds < 0 when no time could be estimated.
struct DumpEstimate {
  int64_t memory_bytes = 0;
  int64_t trace_bytes = 0;    // the finished file
  int64_t scratch_bytes = 0;  // the .part folder at its largest, beside the finished file
  double seconds = -1;
  std::string time_basis;  // how `seconds` was found
};

struct DumpResult {
  std::filesystem::path path;
  bool dry_run = false;
  bool was_complete = false;  // --resume found the finished trace
  int64_t layers = 0;         // captured
  int64_t model_layers = 0;   // of the model or the dump
  int64_t tokens = 0;
  int64_t tokens_asked = 0;  // 0: all there are
  int64_t sequences = 0;
  int64_t incomplete_sequences = 0;
  int64_t row_sequences = 0;
  int64_t row_tokens = 0;
  int64_t bytes = 0;  // of the finished file
  double seconds = 0;
  DumpEstimate estimate;  // dry runs only
  std::string obstacle;   // dry runs only: what the run itself would refuse; empty: nothing
  std::vector<std::string> notes;
  Value manifest;
};

// Runs a dump. Throws Error(kUsage) for contradictory options, Error(kInterrupted) when cancelled:
// what is finished then stays in `<out>.part/` for a run with `resume`.
DumpResult RunDump(const DumpOptions& options, const RunContext& context);

// The result for people and for programs (schema `oscar.dump/1`).
std::string DumpText(const DumpResult& result);
Value DumpJson(const DumpResult& result);

}  // namespace oscar
