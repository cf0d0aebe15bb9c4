// Written files read back by this reader and by PyTorch where it is installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/torchfile/torchfile.h"
#include "support/golden.h"
#include "support/torch_python.h"
#include "torchfile/describe.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

std::span<const uint8_t> BytesOf(const auto& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(values[0])};
}

TorchOut Dict(std::initializer_list<std::pair<TorchOut, TorchOut>> items) {
  return {std::make_shared<TorchOut::Dict>(items)};
}

TorchOut Text(const char* text) { return {std::string(text)}; }
TorchOut Int(int64_t x) { return {x}; }

// Every kind of value, in the shape of a rotation file.
struct Sample {
  std::vector<float> rotation = {1, 0.5F, -0.25F, 3e-39F, 5, 6};
  std::vector<double> reals = {1.5, -2, 1e300};
  std::vector<uint16_t> halves = {0x3c00, 0xc000};  // 1 and -2 in f16; bf16 reads otherwise
  std::vector<int64_t> longs = {-1, int64_t{1} << 40};
  std::vector<int32_t> ints = {7, -8};
  std::vector<uint8_t> bytes = {0, 255};
  std::vector<uint8_t> flags = {1, 0};

  TorchOut Out() const {
    auto list = std::make_shared<TorchOut::List>(1001);
    for (size_t i = 0; i < list->size(); ++i) (*list)[i].data = static_cast<int64_t>(i);
    auto single = std::make_shared<TorchOut::List>(1);
    (*single)[0].data = -2.5;
    return Dict(
        {{Text("format_version"), Int(1)},
         {Text("objective"), Text("qqt_r_h_pbr")},
         {Text("layers"),
          Dict(
              {{Int(3),
                Dict({{Text("layer_id"), Int(3)},
                      {Text("rotation"), {TorchTensorData{DType::kF32, {2, 3}, BytesOf(rotation)}}},
                      {Text("again"), {TorchTensorData{DType::kF32, {3, 2}, BytesOf(rotation)}}}})},
               {Int(700), Dict({})}})},
         {Text("types"),
          Dict({{Text("f64"), {TorchTensorData{DType::kF64, {3}, BytesOf(reals)}}},
                {Text("f16"), {TorchTensorData{DType::kF16, {2}, BytesOf(halves)}}},
                {Text("bf16"), {TorchTensorData{DType::kBF16, {1, 1, 1, 2}, BytesOf(halves)}}},
                {Text("i64"), {TorchTensorData{DType::kI64, {2}, BytesOf(longs)}}},
                {Text("i32"), {TorchTensorData{DType::kI32, {2}, BytesOf(ints)}}},
                {Text("u8"), {TorchTensorData{DType::kU8, {2}, BytesOf(bytes)}}},
                {Text("bool"), {TorchTensorData{DType::kBool, {2}, BytesOf(flags)}}},
                {Text("scalar"),
                 {TorchTensorData{DType::kF32, {}, BytesOf(rotation).first(sizeof(float))}}},
                {Text("empty"), {TorchTensorData{DType::kF32, {2, 0, 3}, {}}}},
                {Text("none"), {TorchTensorData{DType::kI64, {0}, {}}}}})},
         {Text("list"), {list}},
         {Text("single"), {single}},
         {Text("flags"), Dict({{Text("yes"), {true}}, {Text("no"), {false}}, {Text("nil"), {}}})},
         {Text("wide"), Int(-(int64_t{1} << 40))},
         {Text("text"), Text("Gr\xc3\xb6\xc3\x9f"
                             "e")}});
  }
};

TEST(TorchWrite, ReadsBackEqual) {
  const Sample sample;
  const fs::path path = test::FreshFolder("torch_write") / "sample.pt";
  WriteTorchFile(path, sample.Out(), "sample");
  const TorchValue value = ReadTorchFile(path);
  const TorchValue* layer = value.Find("layers");
  ASSERT_NE(layer, nullptr);
  const auto& [key, entry] = (*std::get<std::shared_ptr<TorchValue::Dict>>(layer->data))[0];
  EXPECT_EQ(std::get<int64_t>(key.data), 3);
  const auto& rotation = std::get<TorchTensor>(entry.Find("rotation")->data);
  EXPECT_EQ(rotation.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(rotation.contiguous());
  EXPECT_EQ(rotation.ToFloats(), sample.rotation);
  const auto& again = std::get<TorchTensor>(entry.Find("again")->data);
  EXPECT_EQ(again.storage_key, rotation.storage_key);  // the same bytes are stored once
  const TorchValue* types = value.Find("types");
  EXPECT_EQ(std::get<TorchTensor>(types->Find("f64")->data).ToDoubles(), sample.reals);
  EXPECT_EQ(std::get<TorchTensor>(types->Find("i64")->data).ToInts(), sample.longs);
  EXPECT_EQ(std::get<TorchTensor>(types->Find("f16")->data).ToFloats(),
            (std::vector<float>{1, -2}));
  EXPECT_EQ(std::get<TorchTensor>(types->Find("bool")->data).ToInts(),
            (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(std::get<TorchTensor>(types->Find("empty")->data).elements(), 0);
  EXPECT_THROW(std::get<TorchTensor>(types->Find("f64")->data).ToInts(), Error);
}

TEST(TorchWrite, EqualValuesGiveEqualBytes) {
  const fs::path folder = test::FreshFolder("torch_twice");
  for (const char* name : {"a.pt", "b.pt"}) {
    const Sample sample;  // other addresses each time
    WriteTorchFile(folder / name, sample.Out(), "root");
  }
  EXPECT_EQ(Sha256File((folder / "a.pt").string()), Sha256File((folder / "b.pt").string()));
}

TEST(TorchWrite, FailsWithoutAFolder) {
  EXPECT_EQ(test::ErrorOf([] { WriteTorchFile("/nonexistent/x.pt", Text("x"), "x"); }).code(),
            ErrorCode::kIo);
}

TEST(TorchWrite, PyTorchReadsTheSame) {
  if (!test::HasTorchPython()) GTEST_SKIP() << "no python3 with .deps/torch";
  const Sample sample;
  const fs::path path = test::FreshFolder("torch_python") / "sample.pt";
  WriteTorchFile(path, sample.Out(), "sample");
  const Value described = test::DescribeWithTorch(path);
  EXPECT_EQ(test::Compare(ReadTorchFile(path), described, "sample"), "");
  const Value::Array& layers = described.At("dict").AsArray()[2].AsArray()[1].At("dict").AsArray();
  EXPECT_EQ(layers[0].AsArray()[0].AsInt(), 3);
  EXPECT_EQ(layers[1].AsArray()[0].AsInt(), 700);
}

}  // namespace
}  // namespace oscar
