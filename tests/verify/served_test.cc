// Settings of a verification from the entries' manifests.
#include "oscar/verify/served.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oscar/core/error.h"

namespace oscar {
namespace {

using testing::HasSubstr;

ZooEntry Entry(const std::string& manifest) {
  ZooEntry entry;
  entry.folder = "zoo/x";
  if (!manifest.empty()) entry.manifest = Value::FromJson(manifest, "manifest");
  return entry;
}

EntrySet Set(const std::vector<std::string>& manifests) {
  EntrySet set;
  for (const std::string& manifest : manifests) {
    set.entries.push_back(Entry(manifest));
    set.tags.push_back("entry" + std::to_string(set.tags.size()));
  }
  return set;
}

constexpr const char* kMade = R"({"windows": {"sink": 128, "recent": 32}, "group_size": 16,
                                  "scale_dtype": "bf16"})";

struct Applied {
  MethodSettings method;
  std::vector<std::string> notes;

  Applied(const ServedSettings& asked, const EntrySet& entries, bool use_windows = true) {
    method.use_windows = use_windows;
    ApplyServed(asked, entries, method, notes);
  }
};

std::string Refusal(const EntrySet& entries, bool use_windows = true) {
  try {
    const Applied applied({}, entries, use_windows);
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "";
}

TEST(Served, FollowsTheManifest) {
  const Applied applied({}, Set({kMade, ""}));
  EXPECT_EQ(applied.method.windows, (Windows{128, 32}));
  EXPECT_EQ(applied.method.group_size, 16);
  EXPECT_EQ(applied.method.scale_type, ScaleType::kBF16);
  EXPECT_TRUE(applied.notes.empty());
}

TEST(Served, WithoutManifestsItIsThePublicRecipe) {
  for (const EntrySet& entries : {Set({}), Set({""}), Set({"{}"})}) {
    const Applied applied({}, entries);
    EXPECT_EQ(applied.method.windows, (Windows{64, 256}));
    EXPECT_EQ(applied.method.group_size, 0);
    EXPECT_EQ(applied.method.scale_type, ScaleType::kF32);
  }
}

TEST(Served, WhatIsAskedForWinsAndTheDifferenceIsNoted) {
  ServedSettings asked;
  asked.sink = 4;
  asked.scale_type = ScaleType::kF16;
  const Applied applied(asked, Set({kMade}));
  EXPECT_EQ(applied.method.windows, (Windows{4, 32}));
  EXPECT_EQ(applied.method.scale_type, ScaleType::kF16);
  EXPECT_THAT(applied.notes,
              testing::ElementsAre("entry0 was made for --sink 128, measured with 4",
                                   "entry0 was made for --scale-dtype bf16, measured with f16"));
}

TEST(Served, EntriesThatDifferNeedADecision) {
  const EntrySet two = Set({kMade, R"({"windows": {"sink": 128, "recent": 64}})"});
  EXPECT_EQ(Refusal(two),
            "entry0 was made for --recent 32, but entry1 for 64 | give --recent, or verify them "
            "one by one");
  ServedSettings asked;
  asked.recent = 64;
  EXPECT_THAT(Applied(asked, two).notes,
              testing::ElementsAre(HasSubstr("entry0 was made for --recent 32")));
  EXPECT_EQ(Refusal(two, false), "");  // no windows: nothing to agree on
}

TEST(Served, FlushIsPartOfTheWindows) {
  const char* const ring = R"({"windows": {"sink": 64, "recent": 256, "flush": 8}})";
  EXPECT_EQ(Applied({}, Set({ring})).method.windows, (Windows{64, 256, 8}));
  EXPECT_THAT(Refusal(Set({ring, R"({"windows": {"sink": 64, "recent": 256}})"})),
              HasSubstr("entry0 was made for --flush 8, but entry1 for 1"));
}

TEST(Served, OddManifestsAreRefused) {
  EXPECT_THAT(Refusal(Set({R"({"group_size": -1})"})), HasSubstr("group_size is -1"));
  EXPECT_THAT(Refusal(Set({R"({"windows": {"sink": "64"}})"})), HasSubstr("sink is \"64\""));
  EXPECT_THAT(Refusal(Set({R"({"scale_dtype": "f8"})"})), HasSubstr("scale_dtype is \"f8\""));
  EXPECT_THAT(Refusal(Set({R"({"windows": "on"})"})), HasSubstr("windows is \"on\""));
  for (const char* key : {"sink", "recent", "flush"}) {
    EXPECT_THAT(
        Refusal(Set({std::string(R"({"windows": {")") + key + R"(": 9223372036854775807}})"})),
        HasSubstr(std::string(key) + " is 9223372036854775807"));
  }
}

}  // namespace
}  // namespace oscar
