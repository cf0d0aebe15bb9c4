#include "oscar/dump/import_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dump/dump_folder.h"
#include "oscar/dump/sequences.h"

namespace oscar {
namespace {

using test::Thrown;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<ImportChunk> Chunks(const std::vector<std::vector<int64_t>>& seq_lens,
                                int64_t first = 0) {
  std::vector<ImportChunk> chunks;
  for (const auto& lengths : seq_lens) {
    chunks.push_back({first + static_cast<int64_t>(chunks.size()), lengths});
  }
  return chunks;
}

std::vector<int64_t> Lengths(const ImportPlan& plan) {
  std::vector<int64_t> lengths;
  for (const ImportSequence& s : plan.sequences) lengths.push_back(s.length());
  return lengths;
}

std::vector<bool> Complete(const ImportPlan& plan) {
  std::vector<bool> complete;
  for (const ImportSequence& s : plan.sequences) complete.push_back(s.complete);
  return complete;
}

TEST(Warmup, ATinyFirstChunkFollowedByOthersIsSkipped) {
  const ImportPlan plan = PlanImport(Chunks({{6}, {200, 33}}), {});
  EXPECT_THAT(plan.skipped, ElementsAre(0));
  EXPECT_THAT(Lengths(plan), ElementsAre(200, 33));
  EXPECT_THAT(plan.notes, ::testing::Contains(::testing::HasSubstr("6 tokens")));
}

TEST(Warmup, AFirstChunkWithDataIsKeptAndSaidSo) {
  for (const auto& first : {std::vector<int64_t>{4096}, {17}, {3, 3}}) {
    const ImportPlan plan = PlanImport(Chunks({first, {50}}), {.prefill_chunk = 0});
    EXPECT_THAT(plan.skipped, IsEmpty());
    EXPECT_EQ(plan.chunks.size(), 2U);
    EXPECT_THAT(plan.notes, ::testing::Contains(::testing::HasSubstr("chunk 0 is used")));
  }
  EXPECT_THAT(PlanImport(Chunks({{16}, {50}}), {}).skipped, ElementsAre(0));
}

TEST(Warmup, TheOnlyChunkIsAlwaysUsed) {
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}}), {})), ElementsAre(6));
  EXPECT_THAT(PlanImport(Chunks({{6}}), {}).skipped, IsEmpty());
}

TEST(Warmup, CountingFromOneHasNoWarmup) {
  const ImportPlan plan = PlanImport(Chunks({{6}, {7}}, 1), {});
  EXPECT_THAT(plan.skipped, IsEmpty());
  EXPECT_THAT(Lengths(plan), ElementsAre(6, 7));
}

TEST(Warmup, CanBeDecidedByHand) {
  using Warmup = ImportRules::Warmup;
  EXPECT_THAT(PlanImport(Chunks({{4000}, {9}}), {.warmup = Warmup::kYes}).skipped, ElementsAre(0));
  EXPECT_THAT(PlanImport(Chunks({{6}, {9}}), {.warmup = Warmup::kNo}).skipped, IsEmpty());
  EXPECT_EQ(Thrown([] { PlanImport(Chunks({{6}}), {.warmup = Warmup::kYes}); }).code(),
            ErrorCode::kData);
}

TEST(SplitPrompts, GoOnBehindAFullChunk) {
  // One prompt of 10,000 tokens behind a warm-up of 6.
  const ImportPlan plan = PlanImport(Chunks({{6}, {4096}, {4096}, {1808}}), {});
  EXPECT_THAT(Lengths(plan), ElementsAre(10000));
  EXPECT_THAT(Complete(plan), ElementsAre(true));
  ASSERT_EQ(plan.sequences[0].pieces.size(), 3U);
  EXPECT_EQ(plan.sequences[0].pieces[2].chunk, 2U);
  EXPECT_EQ(plan.sequences[0].pieces[2].begin, 0);
  EXPECT_EQ(plan.sequences[0].pieces[2].end, 1808);
}

TEST(SplitPrompts, ThePartBehindAFullChunkIsOnlyTheFirstSequence) {
  const ImportPlan plan =
      PlanImport(Chunks({{6}, {300, 3796}, {500, 700}, {80}}), {.dump_budget = 0});
  EXPECT_THAT(Lengths(plan), ElementsAre(300, 4296, 700, 80));
}

TEST(SplitPrompts, BatchesAreFilledInPages) {
  // 300 tokens take three pages of 128, so a last prompt of 3712 fills the chunk of 4096.
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {300, 3712}, {500}}), {})), ElementsAre(300, 4212));
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {300, 3711}, {500}}), {})),
              ElementsAre(300, 3711, 500));
}

TEST(SplitPrompts, EqualSmallChunksAreNotSplitPrompts) {
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {6}, {6}, {6}}), {})), ElementsAre(6, 6, 6));
}

TEST(SplitPrompts, LargerChunkSizesAreRecognisedByPowersOfTwo) {
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {8192}, {8192}, {10}}), {})), ElementsAre(16394));
  // Not a power of two: no chunk size is known, nothing is joined.
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {4096}, {5000}, {10}}), {})),
              ElementsAre(4096, 5000, 10));
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {64}, {64}, {10}}), {.prefill_chunk = 64})),
              ElementsAre(138));
  EXPECT_THAT(Lengths(PlanImport(Chunks({{6}, {4096}, {10}}), {.prefill_chunk = 0})),
              ElementsAre(4096, 10));
}

TEST(CutDumps, MarkTheirLastSequence) {
  // Budget of 9,000 with the warm-up counted.
  const ImportPlan cut = PlanImport(Chunks({{6}, {4096}, {4096}, {802}}), {});
  EXPECT_THAT(Lengths(cut), ElementsAre(8994));
  EXPECT_THAT(Complete(cut), ElementsAre(false));
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {40, 54}}), {})), ElementsAre(true, false));
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {40, 55}}), {})), ElementsAre(true, true));
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {40, 55}}), {.dump_budget = 101})),
              ElementsAre(true, false));
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {40, 54}}), {.dump_budget = 0})),
              ElementsAre(true, true));
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {40, 54}}), {.tag_budget = 20000})),
              ElementsAre(true, true));
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {40, 55}}), {.tag_budget = 101})),
              ElementsAre(true, false));
  // A full last chunk: the prompt went on where the dump did not.
  EXPECT_THAT(Complete(PlanImport(Chunks({{6}, {10}, {96, 4000}}), {})),
              ElementsAre(true, true, false));
}

TEST(CutDumps, FolderNamesTellTheBudget) {
  EXPECT_EQ(BudgetFromFolderName("seq20000_prompt83_group128"), 20000);
  EXPECT_EQ(BudgetFromFolderName("seq_prompt83"), 0);
  EXPECT_EQ(BudgetFromFolderName("seq20000"), 0);
  EXPECT_EQ(BudgetFromFolderName("dump"), 0);
}

TEST(TokenLimit, CutsAtAnyToken) {
  for (int64_t limit = 1; limit <= 60; ++limit) {
    ImportPlan plan =
        PlanImport(Chunks({{16}, {5, 11}, {16}, {7}}), {.prefill_chunk = 16, .dump_budget = 0});
    // 5, then 11 + 16 + 7 in three pieces.
    ASSERT_THAT(Lengths(plan), ElementsAre(5, 34));
    LimitTokens(plan, limit);
    if (limit <= 5) {
      EXPECT_THAT(Lengths(plan), ElementsAre(limit));
      EXPECT_THAT(Complete(plan), ElementsAre(limit == 5));
    } else {
      EXPECT_THAT(Lengths(plan), ElementsAre(5, std::min<int64_t>(limit - 5, 34)));
      EXPECT_THAT(Complete(plan), ElementsAre(true, limit >= 39));
    }
    for (const ImportSequence& s : plan.sequences) {
      for (const ImportPiece& piece : s.pieces) EXPECT_LT(piece.begin, piece.end);
    }
  }
}

TEST(Plan, EmptySequencesAndChunksAreIgnored) {
  const ImportPlan plan = PlanImport(Chunks({{6}, {0, 7, 0}, {}, {8}}), {});
  EXPECT_THAT(Lengths(plan), ElementsAre(7, 8));
  EXPECT_EQ(Thrown([] { PlanImport(Chunks({{6}, {0}}), {}); }).code(), ErrorCode::kData);
}

TEST(Budgets, RowsAreKeptForTheFirstWholeSequences) {
  std::vector<TraceSequence> sequences(3);
  sequences[0].length = 10, sequences[1].length = 20, sequences[2].length = 5;
  const auto kept = [&](int64_t budget) {
    std::vector<TraceSequence> copy = sequences;
    const int64_t count = ApplyRowBudget(copy, budget);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(copy[static_cast<size_t>(i)].has_rows, i < count);
    return count;
  };
  EXPECT_EQ(kept(0), 0);
  EXPECT_EQ(kept(9), 0);
  EXPECT_EQ(kept(10), 1);
  EXPECT_EQ(kept(29), 1);  // never a later one that would fit
  EXPECT_EQ(kept(30), 2);
  EXPECT_EQ(kept(1000), 3);
  sequences[2].complete = false;
  EXPECT_EQ(kept(1000), 2);
}

TEST(Budgets, TokensAreCutAndMarked) {
  std::vector<TraceSequence> sequences(3);
  sequences[0].length = 10, sequences[1].length = 20, sequences[2].length = 5;
  std::vector<TraceSequence> all = sequences;
  ApplyTokenBudget(all, 0);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[2].start, 30);
  ApplyTokenBudget(sequences, 30);
  ASSERT_EQ(sequences.size(), 2U);
  EXPECT_TRUE(sequences[1].complete);
  ApplyTokenBudget(sequences, 11);
  ASSERT_EQ(sequences.size(), 2U);
  EXPECT_EQ(sequences[1].length, 1);
  EXPECT_FALSE(sequences[1].complete);
}

}  // namespace
}  // namespace oscar
