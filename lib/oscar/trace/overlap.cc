#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "oscar/trace/trace.h"

namespace oscar {
namespace {

// Long enough that unrelated texts share none by accident, short enough to survive a packing that
// cuts documents at other places.
constexpr size_t kGram = 24;
// One window in so many is kept, chosen by its own hash.
constexpr uint64_t kSampling = 8;

// A run of so many tokens that stands so often is a frame of the text: a chat template, a fixed
// instruction. A 24-gram that is mostly frame says nothing about having seen the text.
constexpr size_t kFrameGram = 8;
constexpr int kFrameCount = 4;

// The finaliser of splitmix64: every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9U;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

bool IdsKnown(const TraceHeader& header) {
  return !header.sequences.empty() && !header.sequences.front().sha256.empty();
}

uint64_t HashAt(const std::vector<int32_t>& ids, size_t begin, size_t length) {
  uint64_t hash = 0x9e3779b97f4a7c15U;
  for (size_t i = begin; i < begin + length; ++i) {
    hash = Mix(hash + static_cast<uint32_t>(ids[i]));
  }
  return hash;
}

// For every token, how many tokens before it (itself not counted) belong to a frame.
std::vector<size_t> FrameTokensBefore(const std::vector<int32_t>& ids,
                                      const std::unordered_map<uint64_t, int>& counts) {
  std::vector<bool> frame(ids.size());
  for (size_t begin = 0; begin + kFrameGram <= ids.size(); ++begin) {
    if (counts.at(HashAt(ids, begin, kFrameGram)) < kFrameCount) continue;
    std::fill_n(frame.begin() + static_cast<std::ptrdiff_t>(begin), kFrameGram, true);
  }
  std::vector<size_t> before(ids.size() + 1);
  for (size_t i = 0; i < ids.size(); ++i) before[i + 1] = before[i] + (frame[i] ? 1 : 0);
  return before;
}

}  // namespace

std::vector<uint64_t> SampledNgrams(const std::vector<int32_t>& ids) {
  std::vector<uint64_t> hashes;
  for (size_t begin = 0; begin + kGram <= ids.size(); ++begin) {
    const uint64_t hash = HashAt(ids, begin, kGram);
    if (hash % kSampling == 0) hashes.push_back(hash);
  }
  return hashes;
}

std::vector<uint64_t> DistinctiveNgrams(const std::vector<std::vector<int32_t>>& sequences) {
  std::unordered_map<uint64_t, int> counts;
  for (const std::vector<int32_t>& ids : sequences) {
    for (size_t begin = 0; begin + kFrameGram <= ids.size(); ++begin) {
      ++counts[HashAt(ids, begin, kFrameGram)];
    }
  }
  std::set<uint64_t> distinctive;
  for (const std::vector<int32_t>& ids : sequences) {
    const std::vector<size_t> before = FrameTokensBefore(ids, counts);
    for (size_t begin = 0; begin + kGram <= ids.size(); ++begin) {
      if (2 * (before[begin + kGram] - before[begin]) >= kGram) continue;
      const uint64_t hash = HashAt(ids, begin, kGram);
      if (hash % kSampling == 0) distinctive.insert(hash);
    }
  }
  return {distinctive.begin(), distinctive.end()};
}

Overlap FindOverlap(const TraceHeader& a, const TraceHeader& b) {
  Overlap overlap;
  overlap.known = IdsKnown(a) && IdsKnown(b);
  overlap.total_ngrams = b.ngram_hashes.size();
  if (!overlap.known) return overlap;
  const std::unordered_set<uint64_t> grams(a.ngram_hashes.begin(), a.ngram_hashes.end());
  overlap.shared_ngrams =
      static_cast<size_t>(std::count_if(b.ngram_hashes.begin(), b.ngram_hashes.end(),
                                        [&](uint64_t hash) { return grams.contains(hash); }));
  std::unordered_set<std::string> hashes;
  for (const TraceSequence& s : a.sequences) hashes.insert(s.sha256);
  for (size_t i = 0; i < b.sequences.size(); ++i) {
    if (hashes.contains(b.sequences[i].sha256)) overlap.identical_sequences.push_back(i);
  }
  return overlap;
}

}  // namespace oscar
