#include "oscar/verify/paged_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace oscar {
namespace {

LayerShape Shape(int64_t window = 0) {
  return {.q_heads = 6, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .window = window};
}

// Whether query i sees key j, and in which tier, straight from the definition.
bool Sees(const LayerShape& shape, int64_t query, int64_t key) {
  return key <= query && (shape.window == 0 || key > query - shape.window);
}
bool InTwoBits(const Windows& windows, TierRule rule, int64_t query, int64_t key) {
  if (rule == TierRule::kRows) return false;
  return rule == TierRule::kQuantised || windows.Quantised(query, key);
}

void ExpectRequestsReadWhatTheySee(const LayerShape& shape,
                                   const std::vector<BatchSequence>& sequences,
                                   const Windows& windows, TierRule rule) {
  const PagedBatch batch = BuildBatch(shape, sequences, windows, rule, 7);
  size_t request = 0, quantised = 0, rows = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    EXPECT_EQ(batch.request_begin[s], static_cast<int64_t>(request));
    for (const int64_t query : sequences[s].queries) {
      RequestLengths expected;
      EXPECT_EQ(batch.query_token[request], batch.token_begin[s] + query);
      for (int64_t key = 0; key < sequences[s].tokens; ++key) {
        if (!Sees(shape, query, key)) continue;
        const auto token = static_cast<size_t>(batch.token_begin[s] + key);
        if (InTwoBits(windows, rule, query, key)) {
          ++expected.quantised;
          ASSERT_EQ(batch.quantised_slots.at(quantised++), batch.quantised_slot_of[token]);
          ASSERT_GE(batch.quantised_slot_of[token], kSlotsPerPage);  // page 0 stays empty
        } else {
          ++expected.rows;
          ASSERT_EQ(batch.row_slots.at(rows++), batch.row_slot_of[token]);
          ASSERT_GE(batch.row_slot_of[token], kSlotsPerPage);
        }
      }
      EXPECT_EQ(batch.lengths[request].quantised, expected.quantised);
      EXPECT_EQ(batch.lengths[request].rows, expected.rows);
      ++request;
    }
  }
  EXPECT_EQ(batch.requests(), static_cast<int64_t>(request));
  EXPECT_EQ(batch.quantised_slots.size(), quantised);
  EXPECT_EQ(batch.row_slots.size(), rows);
  EXPECT_EQ(batch.ReadBytes({2, 64, 1, DType::kF16}),
            // 2 heads, K and V: 16 bytes of codes and 4 of scale and zero, or 128 bytes of bf16.
            static_cast<int64_t>(quantised) * 2 * 2 * (16 + 4) +
                static_cast<int64_t>(rows) * 2 * 2 * 128);
}

TEST(PagedBatch, RequestsReadExactlyWhatTheirQueriesSee) {
  const std::vector<BatchSequence> sequences = {
      {61, {13, 20, 60}}, {12, {11}}, {30, {}}, {17, {0, 1, 12, 13, 16}}};
  for (const int64_t window : {0, 5, 16}) {
    for (const TierRule rule : {TierRule::kRows, TierRule::kWindows, TierRule::kQuantised}) {
      ExpectRequestsReadWhatTheySee(Shape(window), sequences, {4, 8}, rule);
      ExpectRequestsReadWhatTheySee(Shape(window), sequences, {0, 1}, rule);
      ExpectRequestsReadWhatTheySee(Shape(window), sequences, {4, 8, 4}, rule);
    }
  }
}

TEST(PagedBatch, SlotsAreUniqueWholePagesInRandomOrder) {
  const std::vector<BatchSequence> sequences = {{400, {100, 399}}, {83, {82}}};
  const PagedBatch batch = BuildBatch(Shape(), sequences, {4, 8}, TierRule::kWindows, 3);
  std::set<int32_t> used;
  int64_t kept = 0, jumps = 0;
  for (size_t token = 0; token < batch.quantised_slot_of.size(); ++token) {
    const int32_t slot = batch.quantised_slot_of[token];
    if (slot < 0) continue;
    ++kept;
    EXPECT_TRUE(used.insert(slot).second) << slot;
    EXPECT_LT(slot, batch.quantised_pool);
    const int32_t before = token == 0 ? -1 : batch.quantised_slot_of[token - 1];
    // Runs of eight within a page; pages follow each other in no order.
    if (before >= 0 && slot % kSlotsPerPage != 0) {
      EXPECT_EQ(slot, before + 1);
    }
    if (before >= 0 && slot % kSlotsPerPage == 0 && slot != before + 1) ++jumps;
  }
  // Tokens 4 to 391 of the first, 4 to 74 of the second: 49 and 9 pages, and page 0.
  EXPECT_EQ(kept, 388 + 71);
  EXPECT_EQ(batch.quantised_pool, (49 + 9 + 1) * kSlotsPerPage);
  EXPECT_GT(jumps, 40);
  // The second sequence begins on a page of its own.
  EXPECT_EQ(batch.quantised_slot_of[400 + 4] % kSlotsPerPage, 0);
  const PagedBatch other = BuildBatch(Shape(), sequences, {4, 8}, TierRule::kWindows, 4);
  EXPECT_NE(other.quantised_slot_of, batch.quantised_slot_of);
}

TEST(PagedBatch, WritesReachTheirTierOnly) {
  const std::vector<BatchSequence> sequences = {{40, {20, 39}}};
  const PagedBatch batch = BuildBatch(Shape(), sequences, {4, 8}, TierRule::kWindows, 3);
  const std::vector<int32_t> quantised = batch.QuantisedWrites(), rows = batch.RowWrites();
  for (size_t token = 0; token < 40; ++token) {
    const bool low = batch.quantised_slot_of[token] >= 0, high = batch.row_slot_of[token] >= 0;
    EXPECT_EQ(low, token >= 4 && token < 32) << token;
    EXPECT_EQ(high, token < 4 || (token > 12 && token <= 20) || token > 31) << token;
    EXPECT_EQ(quantised[token] < batch.quantised_pool, low);
    EXPECT_EQ(rows[token] >= batch.quantised_pool, high);
    if (high) {
      EXPECT_EQ(rows[token] - batch.quantised_pool, batch.row_slot_of[token]);
    }
  }
  EXPECT_EQ(SlotEntries(Shape(), sequences[0]), 21 + 40);
  EXPECT_EQ(SlotEntries(Shape(5), sequences[0]), 5 + 5);
}

}  // namespace
}  // namespace oscar
