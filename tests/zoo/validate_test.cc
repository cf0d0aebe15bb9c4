// Each check of a validation fires on the fault it is for, and only then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "oscar/zoo/entry.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

using testing::HasSubstr;

std::vector<float> Hadamard(int64_t dim) {
  std::vector<float> h;
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t j = 0; j < dim; ++j) {
      const double sign = std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1;
      h.push_back(static_cast<float>(sign / std::sqrt(static_cast<double>(dim))));
    }
  }
  return h;
}

// The errors of a file, joined.
std::string Errors(const ZooFile& file) {
  std::string text;
  for (const ZooFinding& finding : ValidateFile(file, "f")) {
    if (finding.error) text += finding.where + ": " + finding.what + "\n";
  }
  return text;
}

TEST(Orthogonality, AgreesWithTheDefinition) {
  // R = diag(1 + e, 1): |R R^T - I| = 2 e + e^2 exactly at [0, 0].
  ZooLayer layer;
  layer.dim = 2;
  const float e = 0.125F;
  layer.rotation = {1 + e, 0, 0, 1};
  EXPECT_EQ(MeasureOrthogonality(layer).as_stored, 0.265625);
  EXPECT_EQ(MeasureOrthogonality(layer).as_served, 0.265625);  // 1.125 is a bfloat16
  // The second head decides.
  layer.heads = 2;
  layer.rotation = {1, 0, 0, 1, 0, 1, 2, 0};
  EXPECT_EQ(MeasureOrthogonality(layer).as_stored, 3.0);
}

TEST(Orthogonality, StoredAndServed) {
  for (const int64_t dim : {1, 2, 7, 64, 128}) {
    const ZooLayer layer = test::RandomLayer(dim, 3);
    const ZooOrthogonality found = MeasureOrthogonality(layer);
    // Entries rounded with unit roundoff u move each sum of products by at most 2 u + u^2.
    EXPECT_LE(found.as_stored, 2.5 * 0x1p-24) << dim;
    EXPECT_LE(found.as_served, 2.5 * 0x1p-8) << dim;
    if (dim > 2) {
      EXPECT_GT(found.as_served, 1e-5) << dim;
    }
  }
}

TEST(Validate, AcceptsGoodFiles) {
  EXPECT_EQ(Errors(test::RandomFile("qqt_r_h_pbr", {0, 5}, 32, 1)), "");
  EXPECT_EQ(Errors(test::RandomFile("cov_eig_hadamard_perhead", {0, 5}, 16, 1, 4)), "");
  ZooFile hadamard = test::RandomFile("hadamard", {3, 7}, 64, 1);
  for (auto& [id, layer] : hadamard.layers) layer.rotation = Hadamard(64);
  EXPECT_EQ(Errors(hadamard), "");
}

TEST(Validate, FindsFaults) {
  const ZooFile good = test::RandomFile("qqt_r_h_pbr", {0, 5}, 16, 1);
  const auto with = [&](const std::function<void(ZooFile&)>& change) {
    ZooFile file = good;
    change(file);
    return Errors(file);
  };
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(5).rotation[17] = NAN; }),
              HasSubstr("layer 5: rotation[1, 1] is not finite"));
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(5).rotation[17] += 1e-4F; }),
              HasSubstr("layer 5: max |R R^T - I|"));
  EXPECT_THAT(with([](ZooFile& f) {
                std::swap(f.layers.at(0).eigenvalues[3], f.layers.at(0).eigenvalues[4]);
              }),
              HasSubstr("layer 0: eigenvalues are not ascending"));
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(0).eigenvalues[0] = -1e-3F; }),
              HasSubstr("negative eigenvalue"));
  EXPECT_EQ(with([](ZooFile& f) { f.layers.at(0).eigenvalues[0] = -1e-13F; }), "");
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(0).eigenvalues.assign(16, 0); }),
              HasSubstr("nothing was observed"));
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(0).eigenvalues[15] = INFINITY; }),
              HasSubstr("not finite"));
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(5) = f.layers.at(0); }),
              HasSubstr("layer 5: same rotation as layer 0"));
  EXPECT_THAT(with([](ZooFile& f) { f.layers.at(5).rotation = Hadamard(16); }),
              HasSubstr("layer 5: the rotation carries no calibration"));
  EXPECT_THAT(with([](ZooFile& f) {
                f.layers.at(5).rotation.assign(256, 0);
                for (size_t i = 0; i < 16; ++i) f.layers.at(5).rotation[i * 16 + 15 - i] = -1;
              }),
              HasSubstr("carries no calibration"));
}

TEST(Validate, TheGateFollowsTheStoredType) {
  ZooFile file = test::RandomFile("qqt_r_h_pbr", {0}, 64, 1);
  for (float& x : file.layers.at(0).rotation) x = RoundToBFloat16(x);
  EXPECT_THAT(Errors(file), HasSubstr("as stored in f32"));
  file.layers.at(0).stored_as = DType::kBF16;
  EXPECT_EQ(Errors(file), "");
}

TEST(Validate, UnreadableEntriesAreNoted) {
  ZooFile file = test::RandomFile("qqt_r_h_pbr", {0}, 8, 1);
  file.unreadable = {"mean"};
  const auto findings = ValidateFile(file, "f");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_FALSE(findings[0].error);
  EXPECT_THAT(findings[0].what, HasSubstr("mean"));
}

TEST(ValidateEntry, PairAndManifestMustAgree) {
  ZooEntry good;
  good.folder = "folder";
  good.key_path = "k.pt";
  good.value_path = "v.pt";
  good.key = test::RandomFile("qqt_r_h_pbr", {1, 2}, 16, 1, 0);
  good.value = test::RandomFile("sst_r_h_pbr", {1, 2}, 8, 2, 0);
  good.manifest = Value::FromJson(R"({"model":{"k_dim":16,"v_dim":8,"kv_heads":2},
      "targets":{"key":"qqt","value":"sst"},"clip":{"key":{"1":0.9,"2":0.8},"value":{}},
      "layers":{"1":{},"2":{}}})",
                                  "");
  const auto with = [&](const std::function<void(ZooEntry&)>& change) {
    ZooEntry entry = good;
    change(entry);
    std::string text;
    for (const ZooFinding& finding : ValidateEntry(entry)) {
      text += (finding.error ? "error " : "note ") + finding.where + ": " + finding.what + "\n";
    }
    return text;
  };
  EXPECT_EQ(with([](ZooEntry&) {}), "");
  EXPECT_THAT(with([](ZooEntry& e) { e.value.layers.erase(2); }),
              HasSubstr("error folder: only the K file has layers 2"));
  EXPECT_THAT(with([](ZooEntry& e) { e.key.layers.erase(1); }),
              HasSubstr("only the V file has layers 1"));
  EXPECT_THAT(with([](ZooEntry& e) { (*e.manifest)["model"]["k_dim"] = 32; }),
              HasSubstr("manifest says k_dim 32, the file has 16"));
  EXPECT_THAT(with([](ZooEntry& e) { (*e.manifest)["targets"]["value"] = "svsv"; }),
              HasSubstr("manifest says target svsv"));
  EXPECT_THAT(with([](ZooEntry& e) { (*e.manifest)["clip"]["key"].MutableObject().erase("2"); }),
              HasSubstr("key layer 2: the manifest has clip ratios for other layers only"));
  EXPECT_THAT(with([](ZooEntry& e) { (*e.manifest)["clip"]["key"]["2"] = 0.0; }),
              HasSubstr("expected a number in (0, 1]"));
  EXPECT_THAT(with([](ZooEntry& e) { (*e.manifest)["layers"].MutableObject().erase("2"); }),
              HasSubstr("manifest describes layers 1, the files have 1, 2"));
  EXPECT_THAT(with([](ZooEntry& e) { e.manifest.reset(); }), HasSubstr("note folder: no manifest"));
  // A side without a target: the manifest tells which file is which, names alone do not.
  EXPECT_EQ(with([](ZooEntry& e) {
              e.key.objective = "hadamard";
              (*e.manifest)["targets"]["key"] = "none";
            }),
            "");
  EXPECT_THAT(with([](ZooEntry& e) {
                e.key.objective = "hadamard";
                e.manifest.reset();
              }),
              HasSubstr("do not tell K from V"));
  EXPECT_THAT(with([](ZooEntry& e) {
                e.key = test::RandomFile("qqt", {1, 2}, 16, 1, 2);
                e.value = test::RandomFile("sst", {1, 2}, 8, 1, 4);
                e.manifest.reset();
              }),
              HasSubstr("K has 2 heads, V has 4"));
}

}  // namespace
}  // namespace oscar
