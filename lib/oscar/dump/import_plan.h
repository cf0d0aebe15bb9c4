// Which rows of an official dump folder form which sequences. Pure arithmetic on chunk sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar {

// One chunk of the dump: a prefill batch, the same for all layers.
struct ImportChunk {
  int64_t id = 0;
  std::vector<int64_t> seq_lens;  // lengths of the sequences packed in it
};

struct ImportRules {
  // Chunk 0 is the server's warm-up request. kAuto: when it is one sequence of at most
  // kWarmupTokens tokens and other chunks follow.
  enum class Warmup { kAuto, kYes, kNo };
  Warmup warmup = Warmup::kAuto;
  // Tokens of a full prefill chunk, behind which the last prompt goes on in the next chunk.
  // 0: prompts are never split. -1 (auto): 4096, or the largest chunk when that is a larger power
  // of two; never when some chunk is larger than 4096 and no power of two.
  int64_t prefill_chunk = -1;
  // Token budget that ended the dump; the last sequence is cut when the dump has exactly so many
  // tokens. 0: none. -1 (auto): `tag_budget` when known, else the dump is taken to be cut when its
  // tokens, warm-up included, are 100 (the dump's default) or a multiple of 1000 (what scripts
  // ask).
  int64_t dump_budget = -1;
  int64_t tag_budget = 0;  // from a folder name such as seq20000_prompt83_group128; 0: unknown
};

inline constexpr int64_t kWarmupTokens = 16;
inline constexpr int64_t kDefaultPrefillChunk = 4096;
// Batches of several prompts are filled in pages, so their last prompt ends on a page border.
inline constexpr int64_t kServerPage = 128;

// Rows [begin, end) of a chunk, in the order of ImportPlan::chunks.
struct ImportPiece {
  size_t chunk = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

struct ImportSequence {
  std::vector<ImportPiece> pieces;
  bool complete = true;
  int64_t length() const;
};

struct ImportPlan {
  std::vector<ImportChunk> chunks;  // used, ascending ids
  std::vector<int64_t> skipped;     // ids
  int64_t prefill_chunk = 0;        // the size that was taken for full; 0: none
  std::vector<ImportSequence> sequences;
  std::vector<std::string> notes;  // what was decided and why
};

// `chunks` ascending by id. Throws Error(kData) when no chunk with tokens is left.
ImportPlan PlanImport(std::vector<ImportChunk> chunks, const ImportRules& rules);

// Keeps the first `budget` tokens (0: all); a cut sequence becomes incomplete.
void LimitTokens(ImportPlan& plan, int64_t budget);

// The number behind "seq" in a folder name like seq20000_prompt83_group128, or 0.
int64_t BudgetFromFolderName(const std::string& name);

}  // namespace oscar
