// Reading the published variants of rotation files, refusing what is none, and writing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "oscar/core/hash.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/zoo/entry.h"
#include "support/golden.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Items = std::vector<std::pair<TorchOut, TorchOut>>;

template <typename T>
TorchOut Out(T value) {
  TorchOut out;
  out.data = std::move(value);
  return out;
}
TorchOut Text(const char* text) { return Out(std::string(text)); }
TorchOut Int(int64_t number) { return Out(number); }
TorchOut Dict(Items items) { return Out(std::make_shared<TorchOut::Dict>(std::move(items))); }

// Owns the elements of tensors until the file is written.
class Dialect : public testing::Test {
 protected:
  TorchOut Tensor(std::vector<int64_t> shape, std::vector<float> values) {
    kept_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
    const auto* data = reinterpret_cast<const uint8_t*>(kept_.back()->data());
    return Out(TorchTensorData{
        DType::kF32, std::move(shape), {data, kept_.back()->size() * sizeof(float)}});
  }
  TorchOut Rotation() { return Tensor({2, 2}, {0.6F, 0.8F, -0.8F, 0.6F}); }
  TorchOut Layer(int64_t id) {
    return Dict({{Text("layer_id"), Int(id)},
                 {Text("rotation"), Rotation()},
                 {Text("eigenvalues"), Tensor({2}, {1, 2})}});
  }
  TorchOut File(TorchOut version, const char* grouping, TorchOut layers, Items extra = {}) {
    Items items = {{Text("format_version"), std::move(version)},
                   {Text("objective"), Text("qqt_r_h_pbr")},
                   {Text("source_grouping"), Text(grouping)},
                   {Text("layers"), std::move(layers)}};
    for (auto& item : extra) items.push_back(std::move(item));
    return Dict(std::move(items));
  }
  fs::path Save(const TorchOut& value) {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    const fs::path path = test::FreshFolder(std::string("dialect_") + info->name()) / "k_x.pt";
    WriteTorchFile(path, value, "root");
    return path;
  }
  ZooFile Read(const TorchOut& value) { return ReadZooFile(Save(value)); }
  std::string Refusal(const TorchOut& value) {
    const fs::path path = Save(value);
    const Error error = test::ErrorOf([&] { ReadZooFile(path); });
    EXPECT_THAT(error.what(), testing::StartsWith(path.string()));
    EXPECT_TRUE(error.code() == ErrorCode::kFormat || error.code() == ErrorCode::kUnsupported);
    return error.what();
  }

 private:
  std::vector<std::unique_ptr<std::vector<float>>> kept_;
};

TEST_F(Dialect, IntegerAndTextKeysOfLayers) {
  for (TorchOut key : {Int(31), Text("31")}) {
    const ZooFile file = Read(File(Int(1), "layer", Dict({{key, Layer(31)}})));
    ASSERT_EQ(file.layers.size(), 1U);
    EXPECT_EQ(file.layers.at(31).dim, 2);
    EXPECT_EQ(file.layers.at(31).heads, 0);
    EXPECT_EQ(file.layers.at(31).rotation, (std::vector<float>{0.6F, 0.8F, -0.8F, 0.6F}));
    EXPECT_EQ(file.layers.at(31).eigenvalues, (std::vector<float>{1, 2}));
  }
}

TEST_F(Dialect, IdentityFilesHaveATextVersionAndNoEigenvalues) {
  const TorchOut layer = Dict({{Text("layer_id"), Int(0)}, {Text("rotation"), Rotation()}});
  const ZooFile file = Read(File(Text("identity-v1"), "identity", Dict({{Int(0), layer}})));
  EXPECT_EQ(file.format_version, Value("identity-v1"));
  EXPECT_EQ(file.source_grouping, "identity");
  EXPECT_TRUE(file.layers.at(0).eigenvalues.empty());
}

TEST_F(Dialect, PerHeadFiles) {
  const TorchOut layer =
      Dict({{Text("layer_id"), Int(5)}, {Text("rotation"), Tensor({3, 1, 1}, {1, -1, 1})}});
  const ZooFile file = Read(File(Int(2), "per_kv_head", Dict({{Int(5), layer}})));
  EXPECT_EQ(file.layers.at(5).heads, 3);
  EXPECT_EQ(file.layers.at(5).dim, 1);
}

TEST_F(Dialect, CalibrationMetadataIsKeptAndWrittenBack) {
  const TorchOut metadata = Dict({{Text("tokens"), Int(20000)},
                                  {Text("post_rope"), Out(true)},
                                  {Text("revision"), TorchOut{}},
                                  {Text("created"), Out(1.5)},
                                  {Text("nested"), Dict({{Text("a"), Text("b")}})}});
  const ZooFile file =
      Read(File(Int(1), "layer", Dict({{Int(0), Layer(0)}}), {{Text("calibration"), metadata}}));
  const Value expected = Value::FromJson(
      R"({"tokens":20000,"post_rope":true,"revision":null,"created":1.5,"nested":{"a":"b"}})", "");
  ASSERT_NE(file.extra.Find("calibration"), nullptr);
  EXPECT_EQ(*file.extra.Find("calibration"), expected);
  const fs::path copy = test::FreshFolder("dialect_copy") / "k_copy.pt";
  WriteZooFile(copy, file);
  const ZooFile again = ReadZooFile(copy);
  EXPECT_EQ(again.extra, file.extra);
  EXPECT_EQ(again.format_version, file.format_version);
}

TEST_F(Dialect, UnreadableExtrasAreNamedAndNeverLostSilently) {
  const ZooFile file =
      Read(File(Int(1), "layer", Dict({{Int(0), Layer(0)}}),
                {{Text("mean"), Tensor({1}, {1})}, {Text("by_layer"), Dict({{Int(0), Int(1)}})}}));
  EXPECT_EQ(file.unreadable, (std::vector<std::string>{"mean", "by_layer"}));
  const fs::path copy = test::FreshFolder("dialect_lost") / "k.pt";
  EXPECT_THAT(test::ErrorOf([&] { WriteZooFile(copy, file); }).what(), HasSubstr("mean"));
  EXPECT_FALSE(fs::exists(copy));
}

TEST_F(Dialect, RefusesOtherDialectsByName) {
  EXPECT_THAT(Refusal(Tensor({2, 2}, {1, 0, 0, 1})), HasSubstr("one layer of an MLA folder"));
  EXPECT_THAT(Refusal(Tensor({2, 1, 1}, {1, 1})), HasSubstr("a stack without layer ids"));
  EXPECT_THAT(Refusal(Dict({{Int(0), Rotation()}})), HasSubstr("flat dict"));
  EXPECT_THAT(Refusal(Dict({{Text("codebooks_per_layer"), Int(1)}})), HasSubstr("codebooks"));
  EXPECT_THAT(Refusal(Int(3)), HasSubstr("expected a dict"));
  EXPECT_THAT(Refusal(File(Int(3), "layer", Dict({{Int(0), Layer(0)}}))), HasSubstr("OSCAR-2"));
  EXPECT_THAT(Refusal(File(Int(2), "per_rank", Dict({{Int(0), Dict({{Text("M_q"), Int(1)}})}}))),
              HasSubstr("M_q"));
}

TEST_F(Dialect, RefusesBrokenFiles) {
  const auto with_layer = [&](TorchOut layer) {
    return Refusal(File(Int(1), "layer", Dict({{Int(0), std::move(layer)}})));
  };
  const auto rotation = [&](TorchOut tensor) {
    return with_layer(Dict({{Text("layer_id"), Int(0)}, {Text("rotation"), std::move(tensor)}}));
  };
  EXPECT_THAT(rotation(Tensor({2, 1}, {1, 1})), HasSubstr("shape [2, 1]"));
  EXPECT_THAT(rotation(Tensor({4}, {1, 1, 1, 1})), HasSubstr("shape [4]"));
  EXPECT_THAT(rotation(Tensor({0, 0}, {})), HasSubstr("shape [0, 0]"));
  EXPECT_THAT(rotation(Tensor({1, 2, 2}, {1, 0, 0, 1})), HasSubstr("contradicts"));
  EXPECT_THAT(rotation(Int(1)), HasSubstr("no tensor"));
  EXPECT_THAT(with_layer(Dict({{Text("layer_id"), Int(0)}})), HasSubstr("no \"rotation\""));
  EXPECT_THAT(with_layer(Layer(1)), HasSubstr("another \"layer_id\""));
  EXPECT_THAT(with_layer(Int(1)), HasSubstr("is no dict"));
  EXPECT_THAT(with_layer(Dict(
                  {{Text("rotation"), Rotation()}, {Text("eigenvalues"), Tensor({3}, {1, 2, 3})}})),
              HasSubstr("eigenvalues of shape [3]"));
  EXPECT_THAT(with_layer(Dict({{Text("rotation"), Rotation()}, {Text("q_rotation"), Rotation()}})),
              HasSubstr("q_rotation"));
  EXPECT_THAT(Refusal(File(Int(2), "per_kv_head", Dict({{Int(0), Layer(0)}}))),
              HasSubstr("contradicts"));
  EXPECT_THAT(Refusal(File(Int(1), "layer", Dict({{Int(0), Layer(0)}, {Text("0"), Layer(0)}}))),
              HasSubstr("layer 0 appears twice"));
  EXPECT_THAT(Refusal(File(Int(1), "layer", Dict({{Text("01"), Layer(1)}}))),
              HasSubstr("no layer number"));
  EXPECT_THAT(Refusal(File(Int(1), "layer", Dict({{Int(-1), Layer(-1)}}))),
              HasSubstr("no layer number"));
  EXPECT_THAT(Refusal(File(Int(1), "layer", Dict({}))), HasSubstr("empty"));
  EXPECT_THAT(Refusal(File(Int(1), "layer", Int(1))), HasSubstr("is no dict"));
  EXPECT_THAT(Refusal(File(Int(9), "layer", Dict({{Int(0), Layer(0)}}))),
              HasSubstr("format_version 9"));
}

TEST(ZooWrite, OneStoragePerTensorUnlessShared) {
  ZooFile file = test::RandomFile("hadamard", {3, 7, 11}, 8, 5);
  for (auto& [id, layer] : file.layers) layer = file.layers.at(3);
  const fs::path folder = test::FreshFolder("zoo_aliases");
  const auto storages = [&](ZooAliases aliases) {
    WriteZooFile(folder / "k.pt", file, aliases);
    const TorchValue top = ReadTorchFile(folder / "k.pt");
    std::set<std::string> keys;
    const auto* layers = std::get_if<std::shared_ptr<TorchValue::Dict>>(&top.Find("layers")->data);
    for (const auto& [id, layer] : **layers) {
      keys.insert(std::get<TorchTensor>(layer.Find("rotation")->data).storage_key);
    }
    const ZooFile again = ReadZooFile(folder / "k.pt");
    EXPECT_EQ(again.layers.at(11).rotation, file.layers.at(11).rotation);
    return keys.size();
  };
  EXPECT_EQ(storages(ZooAliases::kExpand), 3U);
  EXPECT_EQ(storages(ZooAliases::kShare), 1U);
}

TEST(ZooWrite, EqualContentGivesEqualBytes) {
  const fs::path a = test::FreshFolder("zoo_bytes_a") / "k_rotation.pt";
  const fs::path b = test::FreshFolder("zoo_bytes_b") / "k_rotation.pt";
  WriteZooFile(a, test::RandomFile("qqt_r_h_pbr", {0, 1, 300}, 16, 9));
  WriteZooFile(b, test::RandomFile("qqt_r_h_pbr", {0, 1, 300}, 16, 9));
  EXPECT_EQ(Sha256File(a.string()), Sha256File(b.string()));
}

TEST(ZooSides, FollowTheTarget) {
  for (const char* name : {"qqt_r_h_pbr", "ktk_plain", "qqt", "identity-k"}) {
    EXPECT_EQ(SideOfObjective(name), ZooSide::kKey) << name;
  }
  for (const char* name : {"sst_r_h_pbr", "svsv_r_h", "vtv_br", "identity-v"}) {
    EXPECT_EQ(SideOfObjective(name), ZooSide::kValue) << name;
  }
  for (const char* name : {"hadamard", "identity", "uresidual", "cov_eig_hadamard_perhead", ""}) {
    EXPECT_EQ(SideOfObjective(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace oscar
