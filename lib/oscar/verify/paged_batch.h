// A decode batch over the rows of a trace, as a serving engine would hold it: which token lies in
// which slot of which tier, and what each request reads. Every chosen query position is one request
// whose cache holds exactly the tokens that query sees. Positions of a sequence share the pages of
// their common prefix, as requests do in an engine with a prefix cache: a token's codes are the
// same for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/cuda/plan.h"

namespace oscar {

// One sequence of a batch: its rows and the positions at which attention is computed.
struct BatchSequence {
  int64_t tokens = 0;
  std::vector<int64_t> queries;  // ascending
};

// Where tokens live. kRows: all in bf16 (a BF16 cache). kWindows: sink and recent tokens of a query
// in bf16, the middle in 2 bits. kQuantised: all in 2 bits.
enum class TierRule { kRows, kWindows, kQuantised };

struct PagedBatch {
  std::vector<int64_t> token_begin;    // [sequences + 1], into the concatenated rows
  std::vector<int64_t> request_begin;  // [sequences + 1]
  std::vector<int64_t> query_token;    // [requests], into the concatenated rows
  std::vector<RequestLengths> lengths;
  // What the requests read, one after another, in the order of the tokens.
  std::vector<int32_t> quantised_slots, row_slots;
  // Slots of each tier: whole pages, and page 0, which stays empty as engines keep it.
  int64_t quantised_pool = 0, row_pool = 0;
  // [tokens]: the token's slot in a tier, -1 where no query reads it there.
  std::vector<int32_t> quantised_slot_of, row_slot_of;

  int64_t tokens() const { return token_begin.back(); }
  int64_t requests() const { return request_begin.back(); }
  // Slot lists of a write of all tokens, [tokens]: slots of the 2-bit tier are below
  // `quantised_pool`, those of the bf16 tier from it on (WriteJob::row_slot_offset); a token that
  // is not in the tier gets a slot of the other one, which such a write drops.
  std::vector<int32_t> QuantisedWrites() const;
  std::vector<int32_t> RowWrites() const;
  // Bytes that decode attention over the whole batch reads, slot numbers and queries apart.
  int64_t ReadBytes(const CacheShape& shape) const;
};

// Pages are handed out in a random order given by `seed`; a sequence begins on a page of its own.
// `shape` gives the sliding window.
PagedBatch BuildBatch(const LayerShape& shape, std::span<const BatchSequence> sequences,
                      const Windows& windows, TierRule rule, uint64_t seed);

// Entries of the two slot lists that BuildBatch makes for one sequence.
int64_t SlotEntries(const LayerShape& shape, const BatchSequence& sequence);

}  // namespace oscar
