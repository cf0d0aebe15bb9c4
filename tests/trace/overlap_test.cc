#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "trace/fake_trace.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Ids(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(32000));
  return ids;
}

TEST(Ngrams, AreSampledByContentAtOneInEight) {
  EXPECT_TRUE(SampledNgrams({}).empty());
  EXPECT_TRUE(SampledNgrams(Ids(23, 1)).empty());
  const size_t windows = 80000 - 23;
  const size_t sampled = SampledNgrams(Ids(80000, 1)).size();
  // Binomial with p = 1/8: ten standard deviations.
  const double expected = static_cast<double>(windows) / 8;
  EXPECT_NEAR(static_cast<double>(sampled), expected, 10 * std::sqrt(expected * 7 / 8));
}

TEST(Ngrams, EqualTextIsSampledEquallyWhereverItStands) {
  const std::vector<int32_t> text = Ids(1000, 2);
  std::vector<int32_t> shifted = Ids(137, 3);
  shifted.insert(shifted.end(), text.begin(), text.end());
  const std::vector<uint64_t> inside = SampledNgrams(text);
  const std::vector<uint64_t> all = SampledNgrams(shifted);
  ASSERT_GT(inside.size(), 50U);
  EXPECT_TRUE(std::equal(inside.begin(), inside.end(), all.end() - std::ssize(inside)));
}

TraceHeader HeaderOf(const std::vector<std::vector<int32_t>>& sequences) {
  TraceHeader header;
  for (const auto& ids : sequences) {
    const auto grams = SampledNgrams(ids);
    header.ngram_hashes.insert(header.ngram_hashes.end(), grams.begin(), grams.end());
    header.sequences.push_back({0, static_cast<int64_t>(ids.size()), true, false,
                                Sha256Hex(ids.data(), ids.size() * sizeof(int32_t))});
  }
  return header;
}

TEST(Overlap, CountsSharedTextAndIdenticalSequences) {
  const auto a = Ids(500, 1), b = Ids(500, 2), c = Ids(500, 3);
  std::vector<int32_t> mixed(a.begin() + 100, a.begin() + 300);
  mixed.insert(mixed.end(), c.begin(), c.end());
  const Overlap none = FindOverlap(HeaderOf({a}), HeaderOf({b, c}));
  EXPECT_TRUE(none.known);
  EXPECT_FALSE(none.any());
  const Overlap same = FindOverlap(HeaderOf({a, b}), HeaderOf({c, b}));
  EXPECT_THAT(same.identical_sequences, ElementsAre(1));
  EXPECT_EQ(same.shared_ngrams, SampledNgrams(b).size());
  EXPECT_EQ(same.total_ngrams, SampledNgrams(b).size() + SampledNgrams(c).size());
  const Overlap part = FindOverlap(HeaderOf({a}), HeaderOf({mixed}));
  EXPECT_TRUE(part.identical_sequences.empty());
  EXPECT_EQ(part.shared_ngrams,
            SampledNgrams(std::vector<int32_t>(a.begin() + 100, a.begin() + 300)).size());
  EXPECT_TRUE(part.any());
}

TEST(Overlap, IsUnknownWithoutIds) {
  TraceHeader imported;
  imported.sequences.push_back({0, 5, true, true, ""});
  EXPECT_FALSE(FindOverlap(imported, HeaderOf({Ids(500, 1)})).known);
  EXPECT_FALSE(FindOverlap(HeaderOf({Ids(500, 1)}), imported).known);
}

TEST(Overlap, FramesThatRepeatAreNoEvidence) {
  // Four questions in one frame: what stands four times is the frame, what stands once the text.
  const std::vector<int32_t> frame = Ids(400, 7);
  std::vector<std::vector<int32_t>> sequences;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<int32_t> ids = frame;
    const std::vector<int32_t> question = Ids(400, 100 + i);
    ids.insert(ids.end(), question.begin(), question.end());
    sequences.push_back(ids);
  }
  const std::vector<uint64_t> grams = DistinctiveNgrams(sequences);
  for (const uint64_t hash : SampledNgrams(frame)) {
    EXPECT_FALSE(std::binary_search(grams.begin(), grams.end(), hash));
  }
  for (const auto& ids : sequences) {
    const std::vector<int32_t> question(ids.begin() + 400, ids.end());
    for (const uint64_t hash : SampledNgrams(question)) {
      EXPECT_TRUE(std::binary_search(grams.begin(), grams.end(), hash));
    }
    // Mostly frame and the first words of a question.
    for (const uint64_t hash : SampledNgrams({ids.begin() + 400 - 23, ids.begin() + 400 + 12})) {
      EXPECT_FALSE(std::binary_search(grams.begin(), grams.end(), hash));
    }
  }
  sequences.pop_back();  // three times is still text
  const std::vector<uint64_t> fewer = DistinctiveNgrams(sequences);
  ASSERT_FALSE(SampledNgrams(frame).empty());
  EXPECT_TRUE(std::binary_search(fewer.begin(), fewer.end(), SampledNgrams(frame).front()));
}

}  // namespace
}  // namespace oscar
