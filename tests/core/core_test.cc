#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/core/host.h"
#include "oscar/core/layer.h"
#include "oscar/core/random.h"

namespace oscar {
namespace {

TEST(DType, EveryFloat16SurvivesWideningAndNarrowing) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(wide))));
    } else {
      EXPECT_EQ(ToFloat16(wide).bits, half.bits) << bits;
    }
  }
}

TEST(DType, Float16RoundsHalfwayCasesToEven) {
  // Halfway between two neighbours of the half grid, for normal and subnormal results.
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = ToFloat(Float16{static_cast<uint16_t>(bits)});
    const float high = ToFloat(Float16{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(ToFloat16(middle).bits, bits + (bits & 1U)) << bits;
    EXPECT_EQ(ToFloat16(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(ToFloat16(std::nextafter(middle, high)).bits, bits + 1);
  }
  EXPECT_EQ(ToFloat16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0F).bits, 0x7c00);
}

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(ToBFloat16(1.0F).bits, 0x3f80);
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3f808001U)).bits, 0x3f81);
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::nanf("")))));
}

TEST(Hash, MatchesPublishedSha256Examples) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 hash;
  for (int i = 0; i < 10000; ++i)
    hash.Update(
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        100);
  EXPECT_EQ(hash.Hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The ring of the public engine, step by step as method.md 7.4 tells it: the tier of every position
// after a prompt of `prompt` tokens and while more are decoded. Returns the first position that is
// exact because it is recent, for each query from `prompt` on.
std::vector<int64_t> EngineRing(int64_t prompt, int64_t sink, int64_t recent, int64_t steps) {
  constexpr int64_t kPage = 8;
  const int64_t in_sink = std::min(sink, prompt);
  int64_t in_ring = std::min(recent, prompt - in_sink);
  int64_t ring_begin = prompt - in_ring;
  int64_t counter = std::max<int64_t>(0, recent + kPage - 1 - in_ring);
  std::vector<int64_t> begins;
  for (int64_t length = prompt; length < prompt + steps; ++length) {
    if (counter == 0) {
      EXPECT_EQ(in_ring, recent + kPage - 1);
      EXPECT_EQ(ring_begin, length - recent - kPage + 1);
      ring_begin += kPage;
      in_ring -= kPage;
      counter = kPage - 1;
    } else {
      --counter;
    }
    ++in_ring;  // the new token
    begins.push_back(ring_begin);
  }
  return begins;
}

TEST(Windows, FlushIsTheRingOfThePublicEngine) {
  for (const auto& [sink, recent] : {std::pair{64, 256}, std::pair{8, 16}, std::pair{0, 8}}) {
    const Windows windows{sink, recent, 8};
    // Prompts no longer than both windows, and longer by a multiple of the page.
    for (const int64_t prompt : {sink, sink + 1, sink + recent - 3, sink + recent,
                                 sink + recent + 8, sink + recent + 80}) {
      const std::vector<int64_t> begins = EngineRing(prompt, sink, recent, 100);
      for (size_t step = 0; step < begins.size(); ++step) {
        const int64_t query = prompt + static_cast<int64_t>(step);
        for (int64_t key = 0; key <= query; ++key) {
          EXPECT_EQ(windows.Quantised(query, key), key >= sink && key < begins[step])
              << prompt << ": " << query << " " << key;
        }
        if (query + 1 < sink + recent) continue;
        const int64_t exact = query + 1 - begins[step];
        EXPECT_GE(exact, recent);
        EXPECT_LE(exact, recent + 7);
      }
    }
  }
}

TEST(Windows, FlushOfOneIsThePlainRule) {
  const Windows plain{4, 8}, flush{4, 8, 5};
  int64_t first = -1;
  for (int64_t query = 0; query < 60; ++query) {
    EXPECT_EQ(plain.RecentBegin(query), query - 7);
    EXPECT_LE(flush.RecentBegin(query), plain.RecentBegin(query));
    EXPECT_GE(flush.RecentBegin(query + 1), flush.RecentBegin(query));
    for (int64_t key = 0; key <= query; ++key) {
      EXPECT_EQ(plain.Quantised(query, key), key >= 4 && key <= query - 8);
      if (flush.Quantised(query, key) && first < 0) first = query;
    }
  }
  EXPECT_EQ(first + 1, flush.ShortestUseful());
}

TEST(Windows, QuantisedRuleAtItsEdges) {
  const Windows w{4, 8};
  EXPECT_FALSE(w.Quantised(100, 3));
  EXPECT_TRUE(w.Quantised(100, 4));
  EXPECT_TRUE(w.Quantised(100, 92));
  EXPECT_FALSE(w.Quantised(100, 93));
  // In the shortest useful sequence exactly one (query, key) pair is quantised.
  int pairs = 0;
  for (int64_t i = 0; i < w.ShortestUseful(); ++i) {
    for (int64_t j = 0; j <= i; ++j) pairs += w.Quantised(i, j) ? 1 : 0;
  }
  EXPECT_EQ(pairs, 1);
}

TEST(Random, IsReproducibleAndRoughlyNormal) {
  Random a(7), b(7), c(8);
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), c.Next());
  double sum = 0, square = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = a.Normal();
    sum += x;
    square += x * x;
  }
  // Five standard errors: 5 / sqrt(n) and 5 sqrt(2 / n).
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(square / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NE(DeriveSeed(1, "a"), DeriveSeed(1, "b"));
}

TEST(Files, PublishesWholeFilesAndNamesMissingOnes) {
  const std::filesystem::path folder = testing::TempDir() + "/oscar_core_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  WriteTextFile(folder / "a.txt", "hello");
  EXPECT_EQ(ReadTextFile(folder / "a.txt"), "hello");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  const MappedFile map(folder / "a.txt");
  EXPECT_EQ(map.bytes().size(), 5U);
  EXPECT_EQ(Sha256File(folder / "a.txt"), Sha256Hex("hello"));
  EXPECT_THROW(MappedFile(folder / "none"), Error);
  EXPECT_THROW(MappedFile{folder}, Error);
  EXPECT_THROW(ReadTextFile(folder), Error);
  std::filesystem::create_directories(folder / "old");
  std::filesystem::create_directories(folder / "new");
  WriteTextFile(folder / "new" / "b.txt", "b");
  EXPECT_THROW(Publish(folder / "new", folder / "old", false), Error);
  Publish(folder / "new", folder / "old", true);
  EXPECT_TRUE(std::filesystem::exists(folder / "old" / "b.txt"));
  // A text file never replaces a folder.
  EXPECT_THROW(WriteTextFile(folder / "old", "x"), Error);
  EXPECT_TRUE(std::filesystem::exists(folder / "old" / "b.txt"));
}

TEST(Files, SeveralFilesAppearTogetherOrNotAtAll) {
  namespace fs = std::filesystem;
  const fs::path folder = testing::TempDir() + "/oscar_core_text_files";
  fs::remove_all(folder);
  fs::create_directories(folder / "taken");
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder)) found.insert(entry.path().filename());
    return found;
  };
  WriteTextFiles({{folder / "a", "1"}, {folder / "b", "2"}});
  WriteTextFiles({{folder / "b", "3"}, {folder / "c", "4"}});
  EXPECT_EQ(ReadTextFile(folder / "a") + ReadTextFile(folder / "b") + ReadTextFile(folder / "c"),
            "134");
  const std::set<std::string> before = names();
  EXPECT_EQ(before, (std::set<std::string>{"a", "b", "c", "taken"}));
  // The second file fails before the first has its name ...
  EXPECT_THROW(WriteTextFiles({{folder / "b", "5"}, {folder / "none" / "d", "6"}}), Error);
  EXPECT_THROW(WriteTextFiles({{folder / "d", "5"}, {folder / "taken", "6"}}), Error);
  // ... and after that: the same name twice finds its temporary file gone.
  EXPECT_THROW(WriteTextFiles({{folder / "b", "5"}, {folder / "d", "6"}, {folder / "d", "7"}}),
               Error);
  EXPECT_EQ(names(), before);
  EXPECT_EQ(ReadTextFile(folder / "b"), "3");
}

TEST(Host, ProcessorNameIsOneLine) {
  const std::string name = ProcessorName();
  EXPECT_EQ(name.find('\n'), std::string::npos);
  EXPECT_FALSE(name.starts_with(' '));
}

}  // namespace
}  // namespace oscar
