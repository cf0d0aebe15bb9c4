#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/report/table.h"
#include "oscar/report/verify_report.h"

namespace oscar {
namespace {

using testing::HasSubstr;
using testing::Not;

Value Metric(double mean, double se) { return Value::Object{{"mean", mean}, {"se", se}, {"n", 4}}; }

Value Record() {
  Value scheme;
  scheme["name"] = "naive<1>";
  scheme["label"] = "naive INT2";
  scheme["bits_per_element"] = 2.25;
  scheme["metrics"]["attention_kl"] = Metric(1.2345, 0.01);
  scheme["regions"]["middle"]["attention_kl"] = Metric(0.5, 0.1);
  Value layer;
  layer["layer"] = 3;
  layer["metrics"]["attention_kl"] = Metric(0.75, 0.1);
  scheme["layers"] = Value::Array{layer};
  Value control = scheme;
  control["name"] = "naive+noise";
  control["control"] = true;
  Value gate =
      Value::Object{{"name", "naive-is-bad"}, {"comparison", "<="}, {"bound", 0.5},
                    {"value", 1.2345},        {"passed", false},    {"reason", "as expected"}};
  Value record;
  record["schema"] = "oscar.verify/1";
  record["schemes"] = Value::Array{scheme, control};
  record["gates"] = Value::Array{gate};
  record["skipped_gates"] = Value::Array{Value::Object{{"name", "needs-a-model"},
                                                       {"scheme", "oscar"},
                                                       {"metric", "next_token_kl"},
                                                       {"reason", "was not measured"}}};
  record["notes"] = Value::Array{"overlap unknown"};
  record["verdict"] = "fail";
  record["settings"] = Value::Object{{"sink", 64}, {"recent", 256}, {"windows", true}};
  record["inputs"] = Value::Object{};
  return record;
}

TEST(Table, AlignsByCodePointsAndTrimsLineEnds) {
  TextTable table({"name", "x"});
  table.Row({"a\u00b1", "10"});
  table.Row({"bcdef", "1"});
  table.Row({"only"});
  EXPECT_EQ(table.ToString("|"), "|name    x\n|a\u00b1     10\n|bcdef   1\n|only\n");
}

TEST(Table, ShortNumberKeepsThreeDigits) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(1.2345), "1.23");
  EXPECT_EQ(ShortNumber(0.012345), "0.0123");
  EXPECT_EQ(ShortNumber(-123.4), "-123");
  EXPECT_EQ(ShortNumber(1e-9), "1.00e-09");
  EXPECT_EQ(ShortNumber(1e9), "1.00e+09");
  EXPECT_EQ(ShortNumber(std::numeric_limits<double>::infinity()), "-");
}

TEST(VerifyReport, TextShowsMetricsGatesNotesAndVerdict) {
  const std::string text = VerifyText(Record(), false);
  EXPECT_THAT(text, HasSubstr("attention KL"));
  EXPECT_THAT(text, HasSubstr("1.23 \u00b10.01"));
  EXPECT_THAT(text, HasSubstr("FAIL"));
  EXPECT_THAT(text, testing::ContainsRegex("needs-a-model +- +- +skipped"));
  EXPECT_THAT(text, HasSubstr("as expected"));
  EXPECT_THAT(text, HasSubstr("note: overlap unknown"));
  EXPECT_THAT(text, HasSubstr("verdict: fail"));
  EXPECT_THAT(text, HasSubstr("windows on (sink 64, recent 256)"));
  EXPECT_THAT(text, Not(HasSubstr("next-token KL")));  // no scheme has it
  EXPECT_THAT(text, Not(HasSubstr("by layer")));
  const std::string with_layers = VerifyText(Record(), true);
  EXPECT_THAT(with_layers, HasSubstr("0.750"));
}

TEST(VerifyReport, HtmlEscapesAndPlots) {
  const std::string html = VerifyHtml(Record());
  EXPECT_THAT(html, HasSubstr("naive&lt;1>"));
  EXPECT_THAT(html, Not(HasSubstr("naive<1>")));
  EXPECT_THAT(html, HasSubstr("<polyline"));
  EXPECT_THAT(html, HasSubstr("class=\"fail\""));
}

TEST(VerifyReport, RefusesOtherRecords) {
  Value record = Record();
  record["schema"] = "oscar.verify/2";
  EXPECT_THROW(VerifyText(record, false), Error);
  EXPECT_THROW(VerifyHtml(Value(Value::Object{})), Error);
}

}  // namespace
}  // namespace oscar
