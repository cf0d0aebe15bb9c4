// JSON values, their texts and what is said of texts that are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "oscar/core/error.h"
#include "oscar/core/json_scan.h"
#include "oscar/core/value.h"

namespace oscar {
namespace {

TEST(Value, SortsKeysAndRoundTrips) {
  Value value;
  value["zeta"] = 0.1;
  value["alpha"] = Value::Array{1, true, nullptr, "x"};
  EXPECT_EQ(value.ToJson(), R"({"alpha":[1,true,null,"x"],"zeta":0.1})");
  EXPECT_EQ(Value::FromJson(value.ToJson(), "test"), value);
  value["inf"] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Value::FromJson(value.ToJson(), "test").At("inf"), Value());
}

TEST(Value, NamesWhatIsWrong) {
  try {
    Value::FromJson("{\"a\": }", "file.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFormat);
    EXPECT_THAT(e.what(), testing::HasSubstr("file.json"));
  }
  EXPECT_THROW(Value(1).AsString(), Error);
  EXPECT_THROW(Value(Value::Object{}).At("missing"), Error);
}

// Readers differ in which of the two they take.
// Columns are those of the last character that was read.
TEST(Value, SaysWhereJsonBreaksOffAndWhatWasExpected) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"a\": }", "line 1, column 7: expected '[', '{', or a literal, found '}'"},
      {"{\n \"a\": 1,\n}", "line 3, column 1: expected string literal, found '}'"},
      {"{\n \"a\": 1\n \"b\": 2}", "line 3, column 4: expected '}', found string literal"},
      {"{x: 1}",
       "line 1, column 2: expected string literal, found invalid literal; last read: '{x'"},
      {"{\"a\": nope}",
       "line 1, column 8: expected a value, found invalid literal; last read: '\"a\": no'"},
      {"[1, 2", "line 1, column 6: expected ']', found end of input"},
      {"", "line 1, column 1: expected '[', '{', or a literal, found end of input"},
      {"[1]\n[2]", "line 2, column 1: expected end of input, found '['"},
      {"[\n  1e999]", "line 2, column 7: number overflow parsing '1e999'"},
      {"[\"a\nb\"]", "line 1, column 4: expected a value, found invalid string: control character"},
  };
  for (const auto& [text, message] : cases) {
    try {
      Value::FromJson(text, "file.json");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kFormat);
      EXPECT_THAT(e.what(), testing::StartsWith("file.json is not valid JSON: " + message)) << text;
      EXPECT_THAT(e.what(), testing::Not(testing::HasSubstr("json.exception")));
    }
  }
}

TEST(Value, QuotesLittleOfWhatIsNoJson) {
  try {
    Value::FromJson("[\"" + std::string(100'000, 'x') + "\xff\"]", "file.json");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_LT(std::string(e.what()).size(), 400U) << e.what();
    EXPECT_THAT(e.what(), testing::HasSubstr("column 100003"));
  }
}

TEST(Value, RefusesAKeyThatComesTwice) {
  for (const char* text :
       {R"({"c": 1, "c": 1})", R"([{"a": 1}, {"b": {"c": [], "d": 0, "c": {}}}])"}) {
    try {
      Value::FromJson(text, "file.json");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kFormat);
      EXPECT_THAT(e.what(),
                  testing::AllOf(testing::HasSubstr("file.json"), testing::HasSubstr("'c'")));
    }
  }
  const Value apart =
      Value::FromJson(R"({"a": {"c": 1}, "b": [{"c": 2}, {"c": 3}], "c": 4})", "test");
  EXPECT_EQ(apart.At("c"), Value(4));
}

TEST(JsonScan, SeesDepthAndRepeatedKeys) {
  const std::string two = R"({"a": [1]})";  // the number is inside two
  EXPECT_FALSE(ScanJson(two, 2).too_deep);
  EXPECT_TRUE(ScanJson(two, 1).too_deep);
  EXPECT_FALSE(ScanJson("[[[]]]", 2).too_deep);
  EXPECT_TRUE(ScanJson("[[[]]]", 1).too_deep);
  const JsonScan scan = ScanJson(R"({"x": {"y": 1, "y": 2}, "z": 0, "z": 1})", 8);
  EXPECT_EQ(scan.repeated, "y");
  EXPECT_EQ(scan.repeated_at_top, "z");
  EXPECT_FALSE(ScanJson(R"({"x": {"x": 1}, "y": [{"x": 1}, {"x": 2}]})", 8).repeated);
}

TEST(Value, DescribesDifferencesByPath) {
  Value a, b;
  a["x"]["y"] = 1;
  b["x"]["y"] = 2;
  b["z"] = true;
  EXPECT_THAT(DescribeDifferences(a, b, 9), testing::ElementsAre("x.y: 1 != 2", "z: null != true"));
}

}  // namespace
}  // namespace oscar
