// Rotary frequencies against transformers (tests/golden/weights/make.py).
#include "oscar/weights/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "oscar/core/files.h"
#include "oscar/core/value.h"
#include "oscar/weights/config.h"
#include "support/golden.h"

namespace oscar {
namespace {

// A Llama configuration with the case's rotary fields, in the newer and the older spelling.
Value ConfigOf(const Value& c, bool older) {
  Value config = Value::FromJson(
      R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 256,
          "intermediate_size": 64, "vocab_size": 32, "num_attention_heads": 4})",
      "test");
  config["head_dim"] = c.At("head_dim");
  if (c.Find("max_position_embeddings") != nullptr) {
    config["max_position_embeddings"] = c.At("max_position_embeddings");
  }
  if (!older) {
    config["rope_parameters"] = c.At("rope_parameters");
    return config;
  }
  Value::Object scaling = c.At("rope_parameters").AsObject();
  config["rope_theta"] = scaling["rope_theta"];
  scaling.erase("rope_theta");
  scaling["type"] = scaling["rope_type"];
  scaling.erase("rope_type");
  config["rope_scaling"] = scaling;
  return config;
}

TEST(Rope, EqualsTransformers) {
  const auto path = std::filesystem::path(OSCAR_SOURCE_DIR) / "tests/golden/weights/rope.json";
  const Value cases = Value::FromJson(ReadTextFile(path), path.string());
  ASSERT_FALSE(cases.AsArray().empty());
  for (const Value& c : cases.AsArray()) {
    for (const bool older : {false, true}) {
      const RopeSpec rope = ParseHfConfig(ConfigOf(c, older), "config.json").config.rope;
      const Value::Array& expected = c.At("inv_freq").AsArray();
      const std::string name = c.At("rope_parameters").ToJson();
      ASSERT_EQ(rope.inv_freq.size(), expected.size()) << name;
      int equal = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        const double e = expected[i].AsDouble();
        // The reference's vectorised power is within 1 ulp of the rounded one used here; the
        // reciprocal and up to four further roundings may each carry that on: 4 ulp of 2^-23.
        EXPECT_LE(std::abs(rope.inv_freq[i] - e), 4 * 0x1p-23 * e) << name << " [" << i << "]";
        EXPECT_EQ(static_cast<double>(static_cast<float>(rope.inv_freq[i])), rope.inv_freq[i]);
        equal += rope.inv_freq[i] == e ? 1 : 0;
      }
      // Most must be equal, or the order of the roundings is not the reference's.
      EXPECT_GE(equal * 10, static_cast<int>(expected.size()) * 7) << name;
      EXPECT_NEAR(rope.attention_factor, c.At("attention_factor").AsDouble(), 1e-12) << name;
    }
  }
}

// llama3 as GGUF stores it: the same frequencies from divisors.
TEST(Rope, DivisorsDivide) {
  RopeParameters parameters;
  parameters.divisors = {1, 2, 8, 32};
  const RopeSpec plain = ComputeRope({}, 8);
  const RopeSpec divided = ComputeRope(parameters, 8);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(divided.inv_freq[i] * static_cast<double>(parameters.divisors[i]), plain.inv_freq[i]);
  }
}

}  // namespace
}  // namespace oscar
