#include "oscar/verify/gates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/verify/default_gates.h"

namespace oscar {
namespace {

using testing::HasSubstr;

SchemeResult Scheme(const std::string& name, std::vector<double> kl, bool control = false) {
  SchemeResult scheme;
  scheme.name = name;
  scheme.control = control;
  scheme.metrics["attention_kl"] = MetricValue::Of(kl);
  scheme.regions[1]["attention_kl"] = MetricValue::Of(std::vector<double>{2 * kl[0]});
  scheme.layers = {{7, {{"attention_kl", MetricValue::Of(std::move(kl))}}}};
  return scheme;
}

Gate Bound(const std::string& scheme, const std::string& comparison, double bound) {
  Gate gate;
  gate.name = "g";
  gate.scheme = scheme;
  gate.metric = "attention_kl";
  gate.comparison = comparison;
  gate.bound = bound;
  return gate;
}

std::vector<GateResult> Evaluate(const Gate& gate, const std::vector<SchemeResult>& schemes) {
  std::vector<GateResult> skipped;
  return EvaluateGates(std::vector<Gate>{gate}, schemes, skipped);
}

TEST(Gates, CompareMeansWithBounds) {
  const std::vector<SchemeResult> schemes = {Scheme("x", {1, 3})};
  for (const auto& [comparison, below, equal, above] : {std::tuple{"<=", false, true, true},
                                                        {"<", false, false, true},
                                                        {">=", true, true, false},
                                                        {">", true, false, false},
                                                        {"==", false, true, false}}) {
    EXPECT_EQ(Evaluate(Bound("x", comparison, 1.5), schemes)[0].passed, below) << comparison;
    EXPECT_EQ(Evaluate(Bound("x", comparison, 2), schemes)[0].passed, equal) << comparison;
    EXPECT_EQ(Evaluate(Bound("x", comparison, 2.5), schemes)[0].passed, above) << comparison;
    EXPECT_FALSE(Evaluate(Bound("x", comparison, 1), {Scheme("x", {std::nan("")})})[0].passed);
  }
}

TEST(Gates, RatiosArePairedOverSequences) {
  Gate gate = Bound("oscar", "<=", 0.6);
  gate.relative_to = "hadamard";
  const std::vector<SchemeResult> schemes = {
      Scheme("hadamard", {1, 4}), Scheme("oscar:a", {0.5, 2}), Scheme("oscar:b", {0.9, 4}),
      Scheme("oscar:a+noise", {9, 9}, true)};
  const std::vector<GateResult> results = Evaluate(gate, schemes);
  ASSERT_EQ(results.size(), 2U);  // every entry, no control
  EXPECT_DOUBLE_EQ(results[0].value, 0.5);
  EXPECT_TRUE(results[0].passed);
  EXPECT_THAT(results[0].reason, HasSubstr("0.5 +- 0"));
  EXPECT_EQ(results[0].name, "g [oscar:a]");
  EXPECT_FALSE(results[1].passed);
  gate.relative_to = "noise";
  gate.scheme = "oscar:a";
  EXPECT_DOUBLE_EQ(Evaluate(gate, schemes)[0].value, 2.5 / 18);
}

TEST(Gates, RegionsHaveMetricsOfTheirOwn) {
  Gate gate = Bound("x", "==", 2);
  gate.region = "middle";
  const GateResult result = Evaluate(gate, {Scheme("x", {1, 3})})[0];
  EXPECT_TRUE(result.passed);
  EXPECT_EQ(ToValue(result).At("metric"), Value("attention_kl"));
  EXPECT_EQ(ToValue(result).At("region"), Value("middle"));
  EXPECT_EQ(ToValue(result).At("bound"), Value(2.0));
}

TEST(Gates, WhatWasNotMeasuredFailsRequiredGatesOnly) {
  std::vector<GateResult> skipped;
  Gate gate = Bound("oscar", "<=", 1);
  const std::vector<SchemeResult> schemes = {Scheme("naive", {1, 2})};
  GateResult result = EvaluateGates(std::vector<Gate>{gate}, schemes, skipped)[0];
  EXPECT_FALSE(result.passed);
  EXPECT_THAT(result.reason, HasSubstr("oscar was not measured"));
  EXPECT_TRUE(ToValue(result).At("value").is_null());
  gate.scheme = "naive";
  gate.metric = "next_token_kl";
  EXPECT_FALSE(EvaluateGates(std::vector<Gate>{gate}, schemes, skipped)[0].passed);
  EXPECT_TRUE(skipped.empty());
  gate.required = false;
  EXPECT_TRUE(EvaluateGates(std::vector<Gate>{gate}, schemes, skipped).empty());
  ASSERT_EQ(skipped.size(), 1U);
  EXPECT_THAT(SkippedValue(skipped[0]).At("reason").AsString(),
              HasSubstr("next_token_kl of naive"));
}

TEST(Gates, FiniteLooksIntoEveryLayer) {
  Gate gate = Bound("*", "finite", 0);
  gate.metric = "*";
  SchemeResult bad = Scheme("x", {1, 2});
  const Value passed = ToValue(Evaluate(gate, {bad})[0]);
  EXPECT_EQ(passed.At("passed"), Value(true));
  EXPECT_EQ(passed.At("comparison"), Value("finite"));
  EXPECT_EQ(passed.Find("bound"), nullptr);
  EXPECT_FALSE(passed.At("reason").AsString().empty());
  bad.layers[0].metrics["attention_kl"] =
      MetricValue::Of(std::vector<double>{std::numeric_limits<double>::infinity()});
  const GateResult result = Evaluate(gate, {bad})[0];
  EXPECT_FALSE(result.passed);
  EXPECT_THAT(result.reason, HasSubstr("layer 7"));
}

TEST(Gates, FiniteNeedsSomethingToLookAt) {
  Gate gate = Bound("x", "finite", 0);
  gate.metric = "next_token_kl";
  const GateResult required = Evaluate(gate, {Scheme("x", {1, 2})})[0];
  EXPECT_FALSE(required.passed);
  EXPECT_THAT(required.reason, HasSubstr("next_token_kl of x was not measured"));
  gate.required = false;
  EXPECT_TRUE(Evaluate(gate, {Scheme("x", {1, 2})}).empty());
}

TEST(Gates, FaultsInTheFileAreNamed) {
  const auto fault = [](const std::string& gates) {
    try {
      ParseGates(R"({"schema": "oscar.gates/1", "gates": )" + gates + "}", "file.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFormat);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto gate = [](const std::string& rest) {
    return R"([{"name": "n", "scheme": "s", "metric": "key_error")" + rest + "}]";
  };
  EXPECT_EQ(fault(gate(R"(, "comparison": "<=", "bound": 1)")), "nothing");
  EXPECT_THAT(fault(gate(R"(, "comparison": "<=", "bound": 1, "limit": 2)")), HasSubstr("'limit'"));
  EXPECT_THAT(fault(gate(R"(, "comparison": "=<", "bound": 1)")), HasSubstr("'=<'"));
  EXPECT_THAT(fault(gate(R"(, "comparison": "<=")")), HasSubstr("bound"));
  EXPECT_THAT(fault(gate(R"(, "comparison": "finite", "bound": 1)")), HasSubstr("neither"));
  EXPECT_THAT(fault(gate(R"(, "comparison": "<=", "bound": 1, "region": "end")")),
              HasSubstr("'end'"));
  EXPECT_THAT(fault(gate(R"(, "comparison": "<=", "bound": 1, "required": 1)")),
              HasSubstr("required"));
  EXPECT_THAT(fault(gate(R"(, "comparison": "<=", "bound": 1, "region": "sink")")),
              HasSubstr("metric 'key_error' of a region: expected one of attention_kl"));
  EXPECT_THAT(fault(R"([{"name": "n", "scheme": "s", "metric": "attn_kl", "comparison": "<=",
                         "bound": 1}])"),
              HasSubstr("metric 'attn_kl': expected one of key_error"));
  EXPECT_THAT(fault(gate("")), HasSubstr("no comparison"));
  EXPECT_THAT(fault("[1]"), HasSubstr("gate 1"));
  EXPECT_THAT(fault("[]"), HasSubstr("no gate"));
  EXPECT_THAT(fault("3"), HasSubstr("no list"));
  EXPECT_THROW(ParseGates("{}", "x"), Error);
  EXPECT_THROW(ParseGates("{", "x"), Error);
}

TEST(Gates, BuiltInGatesAreTheFileInConfigs) {
  const std::string file = std::string(OSCAR_SOURCE_DIR) + "/configs/verify/default.json";
  EXPECT_EQ(kDefaultGates, ReadTextFile(file));
  EXPECT_GE(ReadGates({}).size(), 5U);
}

}  // namespace
}  // namespace oscar
