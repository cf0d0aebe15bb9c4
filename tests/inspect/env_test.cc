// The settings of an engine follow the entry, or are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "oscar/core/error.h"
#include "oscar/inspect/inspect.h"
#include "support/golden.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Entry {
  ZooFile key = test::RandomFile("qqt_r_h_pbr", {0, 1}, 16, 1);
  ZooFile value = test::RandomFile("sst_r_h_pbr", {0, 1}, 16, 50);
  Value manifest = Value::FromJson(
      R"({"windows":{"sink":32,"recent":128},"group_size":0,"scale_dtype":"bf16",
          "clip":{"key":{"0":0.9,"1":0.95},"value":{"0":0.85,"1":0.85},"mode":"search",
                  "single":{"key":0.94,"value":0.85}}})",
      "");
};

class Env : public testing::Test {
 protected:
  Env() { context_.progress = &progress_; }
  InspectReport Run(const std::function<void(Entry&)>& change, const std::string& engine = "sglang",
                    bool absorb_v = false) {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    const fs::path folder = test::FreshFolder(std::string("env_") + info->name()) / "it's an entry";
    Entry entry;
    change(entry);
    WriteZooEntry(folder, entry.key, entry.value, "k_rotation.pt", "v_rotation.pt", entry.manifest,
                  false);
    InspectOptions options;
    options.command = "env";
    options.inputs = {folder};
    options.engine = engine;
    options.absorb_v = absorb_v;
    return RunInspect(options, context_);
  }
  std::string Refusal(const std::function<void(Entry&)>& change,
                      const std::string& engine = "sglang", bool absorb_v = false) {
    return test::ErrorOf([&] { Run(change, engine, absorb_v); }).what();
  }
  NullProgress progress_;
  RunContext context_;
};

TEST_F(Env, SglangFollowsTheManifest) {
  const InspectReport report = Run([](Entry&) {});
  const Value& variables = report.record.At("variables");
  const auto value = [&](const char* name) { return variables.At(name).AsString(); };
  EXPECT_EQ(value("SGLANG_ENABLE_MIXED_KV_WINDOWS"), "1");
  EXPECT_EQ(value("SGLANG_MIXED_KV_PREFIX_TOKENS"), "32");
  EXPECT_EQ(value("SGLANG_MIXED_KV_RECENT_TOKENS"), "128");
  EXPECT_EQ(value("SGLANG_MIXED_KV_HP_DTYPE"), "bfloat16");
  EXPECT_EQ(value("SGLANG_MIXED_KV_SCALE_DTYPE"), "bfloat16");
  EXPECT_EQ(value("SGLANG_OSCAR_K_CLIP_RATIO"), "0.94");
  EXPECT_EQ(value("SGLANG_OSCAR_V_CLIP_RATIO"), "0.85");
  EXPECT_EQ(value("SGLANG_OSCAR_ABSORB_V_ROTATION"), "0");
  EXPECT_EQ(value("SGLANG_LLOYD_MAX"), "0");
  EXPECT_TRUE(fs::path(value("SGLANG_OSCAR_K_ROTATION_PATH")).is_absolute());
  EXPECT_TRUE(fs::exists(value("SGLANG_OSCAR_K_ROTATION_PATH")));
  EXPECT_TRUE(fs::exists(value("SGLANG_OSCAR_V_ROTATION_PATH")));
  const std::vector<Value> flags = {"--kv-cache-dtype",
                                    "int2",
                                    "--kv-cache-quant-group-size",
                                    "16",
                                    "--prefill-attention-backend",
                                    "fa3",
                                    "--decode-attention-backend",
                                    "triton"};
  EXPECT_EQ(report.record.At("flags").AsArray(), flags);
  EXPECT_THAT(report.text, HasSubstr("an entry' --sink 32 --recent 128 --flush 8 --group-size 16 "
                                     "--scale-dtype bf16 --clip 0.94,0.85 --as-served "
                                     "--traces FILE\n"));
  EXPECT_EQ(report.record.At("verify_options").AsArray().at(2), Value("--sink"));
  // Ratios per layer differ for K only.
  EXPECT_THAT(report.text, HasSubstr("note: key: the best single clip ratio"));
  EXPECT_THAT(report.text, testing::Not(HasSubstr("note: value:")));
  // Odd folder names survive a shell.
  EXPECT_THAT(report.text, HasSubstr("it'\\''s an entry/k_rotation.pt'\n"));
}

TEST_F(Env, ClippingOffAndAbsorption) {
  const InspectReport report = Run(
      [](Entry& e) {
        e.manifest["clip"] = Value::Object{{"mode", "off"}};
      },
      "sglang", true);
  EXPECT_EQ(report.record.At("variables").At("SGLANG_OSCAR_K_CLIP_RATIO").AsString(), "0");
  EXPECT_EQ(report.record.At("variables").At("SGLANG_OSCAR_ABSORB_V_ROTATION").AsString(), "1");
  EXPECT_THAT(report.text, HasSubstr("Qwen3 and GLM-4-MoE only"));
}

TEST_F(Env, PublicRecipeWhereTheManifestIsSilent) {
  const InspectReport report = Run([](Entry& e) { e.manifest = Value::Object(); });
  const Value& variables = report.record.At("variables");
  EXPECT_EQ(variables.At("SGLANG_MIXED_KV_PREFIX_TOKENS").AsString(), "64");
  EXPECT_EQ(variables.At("SGLANG_MIXED_KV_RECENT_TOKENS").AsString(), "256");
  EXPECT_EQ(variables.At("SGLANG_OSCAR_K_CLIP_RATIO").AsString(), "0.96");
  EXPECT_EQ(variables.At("SGLANG_OSCAR_V_CLIP_RATIO").AsString(), "0.92");
  EXPECT_THAT(report.text, HasSubstr("the public recipe's 0.96"));
}

TEST_F(Env, SglangRefusesWhatItCannotServe) {
  EXPECT_THAT(Refusal([](Entry& e) { e.manifest["windows"]["sink"] = 60; }),
              HasSubstr("multiple of 8"));
  EXPECT_THAT(
      test::ErrorOf([&] { Run([](Entry& e) { e.manifest["windows"]["sink"] = 60; }); }).hint(),
      HasSubstr("--sink"));
  EXPECT_THAT(Refusal([](Entry& e) {
                e.manifest["windows"]["sink"] = 0;
                e.manifest["windows"]["recent"] = 0;
              }),
              HasSubstr("both windows are 0"));
  EXPECT_THAT(Refusal([](Entry& e) { e.manifest["group_size"] = 5; }), HasSubstr("group size 5"));
  EXPECT_THAT(Refusal([](Entry& e) { e.manifest["scale_dtype"] = "f8"; }), HasSubstr("\"f8\""));
  EXPECT_THAT(Refusal([](Entry& e) {
                e.value = test::RandomFile("sst_r_h_pbr", {0, 1}, 8, 9);
              }),
              HasSubstr("one head dim"));
  EXPECT_THAT(Refusal([](Entry& e) { e.value.layers.at(1).rotation[0] += 0.1F; }),
              HasSubstr("max |R R^T - I|"));
  EXPECT_THAT(Refusal(
                  [](Entry& e) {
                    e.key = test::RandomFile("qqt_r_h_pbr", {0, 1}, 16, 1, 2);
                    e.value = test::RandomFile("sst_r_h_pbr", {0, 1}, 16, 8, 2);
                  },
                  "sglang", true),
              HasSubstr("absorbed"));
}

TEST_F(Env, NotesForUnusualEntries) {
  EXPECT_THAT(Run([](Entry& e) {
                e.key = test::RandomFile("qqt_r_h_pbr", {3, 7}, 16, 1);
                e.value = test::RandomFile("sst_r_h_pbr", {3, 7}, 16, 9);
                e.manifest.MutableObject().erase("clip");
              }).text,
              HasSubstr("layer numbers have gaps"));
  EXPECT_THAT(Run([](Entry& e) {
                e.key = test::RandomFile("qqt_r_h_pbr", {0, 1}, 16, 1, 2);
                e.value = test::RandomFile("sst_r_h_pbr", {0, 1}, 16, 8, 2);
              }).text,
              HasSubstr("one rotation per KV head"));
  EXPECT_THAT(Run([](Entry& e) { e.manifest["group_size"] = 4; }).text,
              HasSubstr("groups smaller than the head"));
}

TEST_F(Env, OtherEnginesAreRefusedWithTheReason) {
  EXPECT_THAT(Refusal([](Entry&) {}, "vllm"), HasSubstr("SINK_TOKENS"));
  EXPECT_THAT(Refusal([](Entry&) {}, "llamacpp"), HasSubstr("GGUF"));
}

}  // namespace
}  // namespace oscar
