#include "oscar/dump/import_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/core/printable.h"

namespace oscar {
namespace {

int64_t TokensOf(const ImportChunk& chunk) {
  return std::accumulate(chunk.seq_lens.begin(), chunk.seq_lens.end(), int64_t{0});
}

void SkipWarmup(ImportPlan& plan, ImportRules::Warmup rule) {
  const bool is_first = !plan.chunks.empty() && plan.chunks.front().id == 0;
  if (rule == ImportRules::Warmup::kNo || !is_first) return;
  const ImportChunk& first = plan.chunks.front();
  const int64_t tokens = TokensOf(first);
  const bool tiny = first.seq_lens.size() <= 1 && tokens <= kWarmupTokens;
  if (rule == ImportRules::Warmup::kAuto && (!tiny || plan.chunks.size() == 1)) {
    plan.notes.push_back(fmt::format(
        "chunk 0 is used: {} in {}{}", Counted(tokens, "token"),
        Counted(first.seq_lens.size(), "sequence"),
        plan.chunks.size() == 1 ? ", and there is no other chunk" : ", which is no warm-up"));
    return;
  }
  plan.notes.push_back(fmt::format("chunk 0 is skipped as the server's warm-up: {}{}",
                                   Counted(tokens, "token"), tiny ? "" : " (--skip-warmup yes)"));
  plan.skipped.push_back(0);
  plan.chunks.erase(plan.chunks.begin());
}

int64_t ResolvePrefillChunk(const std::vector<ImportChunk>& chunks, int64_t rule) {
  if (rule >= 0) return rule;
  int64_t largest = 0;
  for (const ImportChunk& chunk : chunks) largest = std::max(largest, TokensOf(chunk));
  if (largest <= kDefaultPrefillChunk) return kDefaultPrefillChunk;
  return std::has_single_bit(static_cast<uint64_t>(largest)) ? largest : 0;
}

// Whether the chunk used up the server's prefill budget, so that its last prompt was cut there. The
// server counts the prompts before the last one in whole pages.
bool IsFull(const ImportChunk& chunk, int64_t prefill_chunk) {
  if (prefill_chunk == 0 || chunk.seq_lens.empty()) return false;
  if (TokensOf(chunk) >= prefill_chunk) return true;
  int64_t paged = 0;
  for (const int64_t length : chunk.seq_lens) {
    paged += (length + kServerPage - 1) / kServerPage * kServerPage;
  }
  return paged == prefill_chunk && chunk.seq_lens.back() % kServerPage == 0;
}

// Whether the dump ended because its token budget was used up.
bool CutByBudget(int64_t tokens, const ImportRules& rules) {
  if (rules.dump_budget >= 0) return tokens == rules.dump_budget;
  if (rules.tag_budget > 0) return tokens == rules.tag_budget;
  return tokens == 100 || (tokens > 0 && tokens % 1000 == 0);
}

void FormSequences(ImportPlan& plan) {
  bool goes_on = false;
  int64_t split = 0;
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    int64_t begin = 0;
    for (size_t i = 0; i < plan.chunks[c].seq_lens.size(); ++i) {
      const int64_t end = begin + plan.chunks[c].seq_lens[i];
      const bool continues = goes_on && i == 0;
      if (!continues) plan.sequences.emplace_back();
      split += continues ? 1 : 0;
      plan.sequences.back().pieces.push_back({c, begin, end});
      begin = end;
    }
    // A chunk without sequences changes nothing.
    if (!plan.chunks[c].seq_lens.empty()) goes_on = IsFull(plan.chunks[c], plan.prefill_chunk);
  }
  if (split > 0) {
    plan.notes.push_back(fmt::format("{} a prompt goes on behind a full chunk of {} tokens",
                                     Counted(split, "time"), plan.prefill_chunk));
  }
  if (goes_on && !plan.sequences.empty()) {
    plan.sequences.back().complete = false;
    plan.notes.push_back("the last chunk is full: its last sequence is taken to be incomplete");
  }
}

}  // namespace

int64_t ImportSequence::length() const {
  int64_t tokens = 0;
  for (const ImportPiece& piece : pieces) tokens += piece.end - piece.begin;
  return tokens;
}

ImportPlan PlanImport(std::vector<ImportChunk> chunks, const ImportRules& rules) {
  ImportPlan plan;
  int64_t all_tokens = 0;
  for (ImportChunk& chunk : chunks) {
    all_tokens += TokensOf(chunk);
    std::erase(chunk.seq_lens, 0);
  }
  plan.chunks = std::move(chunks);
  SkipWarmup(plan, rules.warmup);
  plan.prefill_chunk = ResolvePrefillChunk(plan.chunks, rules.prefill_chunk);
  FormSequences(plan);
  if (plan.sequences.empty()) {
    throw Error(ErrorCode::kData, "the dump holds no tokens beside its warm-up",
                "keep chunk 0 with --skip-warmup no if it is no warm-up");
  }
  if (CutByBudget(all_tokens, rules) && plan.sequences.back().complete) {
    plan.sequences.back().complete = false;
    plan.notes.push_back(fmt::format(
        "the dump ends at a budget of {} tokens: its last sequence is taken to be incomplete",
        all_tokens));
  }
  return plan;
}

void LimitTokens(ImportPlan& plan, int64_t budget) {
  if (budget == 0) return;
  int64_t left = budget;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    ImportSequence& sequence = plan.sequences[s];
    if (left == 0) {
      plan.sequences.resize(s);
      return;
    }
    for (size_t p = 0; p < sequence.pieces.size(); ++p) {
      ImportPiece& piece = sequence.pieces[p];
      const int64_t taken = std::min(left, piece.end - piece.begin);
      left -= taken;
      if (taken == piece.end - piece.begin) continue;
      piece.end = piece.begin + taken;
      sequence.pieces.resize(taken > 0 ? p + 1 : p);
      sequence.complete = false;
      break;
    }
  }
}

int64_t BudgetFromFolderName(const std::string& name) {
  int64_t budget = 0;
  if (!name.starts_with("seq")) return 0;
  const char* begin = name.data() + 3;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), budget);
  const bool tagged = error == std::errc() && std::string_view(end).starts_with("_prompt");
  return tagged && budget > 0 ? budget : 0;
}

}  // namespace oscar
