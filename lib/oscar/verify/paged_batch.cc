#include "oscar/verify/paged_batch.h"

#include <limits>
#include <numeric>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/metrics/attention_parts.h"

namespace oscar {
namespace {

constexpr int32_t kNowhere = -1;

// Hands out the slots of one tier.
class Pages {
 public:
  Pages(int64_t pages, uint64_t seed) : order_(static_cast<size_t>(pages)) {
    std::iota(order_.begin(), order_.end(), 1);  // page 0 stays empty
    Random random(seed);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Below(i)]);
  }
  // Slots in turn for the tokens of [begin, end) that are marked; then on to the next page.
  void Place(const std::vector<bool>& wanted, int64_t begin, std::vector<int32_t>& slot_of) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i]) continue;
      const int64_t page = order_.at(static_cast<size_t>(next_ / kSlotsPerPage));
      slot_of[static_cast<size_t>(begin) + i] =
          static_cast<int32_t>(page * kSlotsPerPage + next_ % kSlotsPerPage);
      ++next_;
    }
    next_ = (next_ + kSlotsPerPage - 1) / kSlotsPerPage * kSlotsPerPage;
  }
  int64_t slots() const { return (static_cast<int64_t>(order_.size()) + 1) * kSlotsPerPage; }

 private:
  std::vector<int64_t> order_;
  int64_t next_ = 0;
};

// Keys of a query that lie in the 2-bit tier.
KeyRange QuantisedKeys(const LayerShape& shape, const Windows& windows, TierRule rule,
                       int64_t query) {
  if (rule == TierRule::kQuantised) return VisibleKeys(shape, query);
  if (rule == TierRule::kWindows) return MiddleKeys(shape, windows, query);
  return {};
}

// Which tokens of a sequence some query reads in either tier.
struct Residents {
  std::vector<bool> quantised, rows;
};

Residents FindResidents(const LayerShape& shape, const BatchSequence& sequence,
                        const Windows& windows, TierRule rule) {
  const auto tokens = static_cast<size_t>(sequence.tokens);
  Residents residents{std::vector<bool>(tokens), std::vector<bool>(tokens)};
  for (const int64_t query : sequence.queries) {
    const KeyRange quantised = QuantisedKeys(shape, windows, rule, query);
    const KeyRange visible = VisibleKeys(shape, query);
    for (int64_t key = visible.begin; key < visible.end; ++key) {
      const bool middle = key >= quantised.begin && key < quantised.end;
      (middle ? residents.quantised : residents.rows)[static_cast<size_t>(key)] = true;
    }
  }
  return residents;
}

int64_t PagesFor(const std::vector<bool>& wanted) {
  int64_t count = 0;
  for (const bool x : wanted) count += x ? 1 : 0;
  return (count + kSlotsPerPage - 1) / kSlotsPerPage;
}

void ListRequest(const LayerShape& shape, const Windows& windows, TierRule rule, int64_t query,
                 int64_t first_token, PagedBatch& batch) {
  const KeyRange visible = VisibleKeys(shape, query);
  const KeyRange quantised = QuantisedKeys(shape, windows, rule, query);
  RequestLengths lengths;
  for (int64_t key = visible.begin; key < visible.end; ++key) {
    const auto token = static_cast<size_t>(first_token + key);
    if (key >= quantised.begin && key < quantised.end) {
      batch.quantised_slots.push_back(batch.quantised_slot_of[token]);
      ++lengths.quantised;
    } else {
      batch.row_slots.push_back(batch.row_slot_of[token]);
      ++lengths.rows;
    }
  }
  batch.query_token.push_back(first_token + query);
  batch.lengths.push_back(lengths);
}

}  // namespace

std::vector<int32_t> PagedBatch::QuantisedWrites() const {
  std::vector<int32_t> slots = quantised_slot_of;
  for (int32_t& slot : slots) {
    if (slot == kNowhere) slot = static_cast<int32_t>(quantised_pool);
  }
  return slots;
}

std::vector<int32_t> PagedBatch::RowWrites() const {
  std::vector<int32_t> slots = row_slot_of;
  for (int32_t& slot : slots) {
    slot = slot == kNowhere ? 0 : static_cast<int32_t>(quantised_pool) + slot;
  }
  return slots;
}

int64_t PagedBatch::ReadBytes(const CacheShape& shape) const {
  return static_cast<int64_t>(quantised_slots.size()) * shape.QuantisedTokenBytes() +
         static_cast<int64_t>(row_slots.size()) * shape.RowTokenBytes();
}

PagedBatch BuildBatch(const LayerShape& shape, std::span<const BatchSequence> sequences,
                      const Windows& windows, TierRule rule, uint64_t seed) {
  PagedBatch batch;
  batch.token_begin = {0};
  batch.request_begin = {0};
  std::vector<Residents> residents;
  int64_t pages[2] = {0, 0};
  for (const BatchSequence& sequence : sequences) {
    for (const int64_t query : sequence.queries) {
      OSCAR_CHECK(query >= 0 && query < sequence.tokens);
    }
    residents.push_back(FindResidents(shape, sequence, windows, rule));
    pages[0] += PagesFor(residents.back().quantised);
    pages[1] += PagesFor(residents.back().rows);
    batch.token_begin.push_back(batch.token_begin.back() + sequence.tokens);
    batch.request_begin.push_back(batch.request_begin.back() +
                                  static_cast<int64_t>(sequence.queries.size()));
  }
  // Both pools are numbered in one list of int32.
  if ((pages[0] + pages[1] + 2) * kSlotsPerPage > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorCode::kUnsupported, "a batch of more than 2^31 cache slots");
  }
  Pages quantised(pages[0], DeriveSeed(seed, "quantised pages"));
  Pages rows(pages[1], DeriveSeed(seed, "row pages"));
  batch.quantised_pool = quantised.slots();
  batch.row_pool = rows.slots();
  batch.quantised_slot_of.assign(static_cast<size_t>(batch.tokens()), kNowhere);
  batch.row_slot_of = batch.quantised_slot_of;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t first = batch.token_begin[s];
    quantised.Place(residents[s].quantised, first, batch.quantised_slot_of);
    rows.Place(residents[s].rows, first, batch.row_slot_of);
    for (const int64_t query : sequences[s].queries) {
      ListRequest(shape, windows, rule, query, first, batch);
    }
  }
  return batch;
}

int64_t SlotEntries(const LayerShape& shape, const BatchSequence& sequence) {
  int64_t entries = 0;
  for (const int64_t query : sequence.queries) entries += VisibleKeys(shape, query).size();
  return entries;
}

}  // namespace oscar
