// Hand-made pickles: every opcode that is read, and what must be refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "oscar/core/error.h"
#include "oscar/torchfile/pickle_reader.h"
#include "oscar/torchfile/pickle_writer.h"
#include "torchfile/describe.h"

namespace oscar {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

// A storage loader that serves zeros.
OwnedBytes Zeros(const std::string&, DType dtype, int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * DTypeSize(dtype);
  auto buffer = std::make_shared<std::vector<uint8_t>>(bytes + 1);
  return {buffer, {buffer->data(), bytes}};
}

TorchValue Read(const std::string& body) {
  const std::string pickle = "\x80\x02" + body;
  return UnpickleTorch({reinterpret_cast<const uint8_t*>(pickle.data()), pickle.size()}, "f.pt",
                       Zeros);
}

std::string Refusal(const std::string& body) {
  const Error error = test::ErrorOf([&] { Read(body); });
  EXPECT_THAT(error.what(), testing::StartsWith("f.pt"));
  return error.what();
}

template <typename T>
T Scalar(const std::string& body) {
  return std::get<T>(Read(body).data);
}

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xff);
  return text;
}

std::string Text(const std::string& text) { return "X" + Little(text.size(), 4) + text; }

// A tensor over storage "0" of `stored` floats.
std::string Tensor(int64_t stored, int64_t offset, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& strides) {
  const auto number = [](int64_t x) { return "\x8a\x08" + Little(static_cast<uint64_t>(x), 8); };
  const auto tuple = [&](const std::vector<int64_t>& items) {
    std::string text = "(";
    for (const int64_t item : items) text += number(item);
    return text + "t";
  };
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") + "ctorch\nFloatStorage\n" +
         Text("0") + Text("cpu") + number(stored) + "tQ" + number(offset) + tuple(shape) +
         tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

TEST(Pickle, Scalars) {
  EXPECT_TRUE(std::holds_alternative<std::monostate>(Read("N.").data));
  EXPECT_EQ(Scalar<bool>("\x88."), true);
  EXPECT_EQ(Scalar<bool>("\x89."), false);
  EXPECT_EQ(Scalar<int64_t>("K\xff."), 255);
  EXPECT_EQ(Scalar<int64_t>("M\xff\xff."), 65535);
  EXPECT_EQ(Scalar<int64_t>("J\xff\xff\xff\xff."), -1);
  EXPECT_EQ(Scalar<int64_t>("\x8a\x00."s), 0);
  EXPECT_EQ(Scalar<int64_t>("\x8a\x01\x80."), -128);
  EXPECT_EQ(Scalar<int64_t>("\x8a\x02\x80\x00."s), 128);
  EXPECT_EQ(Scalar<int64_t>("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Scalar<int64_t>("\x8b\x02\x00\x00\x00\x01\x02."s), 0x201);
  EXPECT_EQ(Scalar<double>("G\x3f\xf8\x00\x00\x00\x00\x00\x00."s), 1.5);
  EXPECT_EQ(Scalar<std::string>("X\x02\x00\x00\x00\xc3\xb6."s), "\xc3\xb6");
  EXPECT_EQ(Scalar<std::string>("\x8c\x01y."), "y");
  EXPECT_EQ(Scalar<std::string>("\x8d\x01\x00\x00\x00\x00\x00\x00\x00z."s), "z");
}

// [x, x, (5,)] with x = [].
TEST(Pickle, SharedContainersStaySharedAndTuplesBecomeLists) {
  const TorchValue value = Read(
      "](]q\x01h\x01K\x05\x85"
      "e.");
  using ListPointer = std::shared_ptr<TorchValue::List>;
  const auto& outer = *std::get<ListPointer>(value.data);
  ASSERT_EQ(outer.size(), 3U);
  EXPECT_EQ(std::get<ListPointer>(outer[0].data), std::get<ListPointer>(outer[1].data));
  EXPECT_EQ(std::get<ListPointer>(outer[2].data)->size(), 1U);
}

TEST(Pickle, DictsOfEveryMaking) {
  for (const std::string& body :
       std::vector<std::string>{"}" + Text("a") + "K\x01s.", "}(" + Text("a") + "K\x01u.",
                                "ccollections\nOrderedDict\n)R(" + Text("a") + "K\x01u}b.",
                                "\x95" + Little(9, 8) + "\x8c\x0b" + "collections\x94\x8c\x0b" +
                                    "OrderedDict\x94\x93)R" + Text("a") + "K\x01s."}) {
    const TorchValue value = Read(body);
    ASSERT_NE(value.Find("a"), nullptr);
    EXPECT_EQ(std::get<int64_t>(value.Find("a")->data), 1);
    EXPECT_EQ(value.Find("b"), nullptr);
  }
}

TEST(Pickle, MessagesNameTheOffset) {
  EXPECT_THAT(Refusal("K\x01K\x02"
                      "cposix\nsystem\n."),
              HasSubstr("pickle offset 6"));
  EXPECT_THAT(Refusal("cposix\nsystem\n."), HasSubstr("posix.system"));
  EXPECT_THAT(Refusal("\x8c\x05posix\x8c\x06system\x93."), HasSubstr("posix.system"));
  EXPECT_THAT(Refusal("cbad\x1b[31m\nname\n."), HasSubstr("bad?[31m.name"));
}

TEST(Pickle, RefusesOpcodesByName) {
  EXPECT_THAT(Refusal("iposix\nsystem\n."), HasSubstr("INST"));
  EXPECT_THAT(Refusal("ccollections\nOrderedDict\n)\x81."), HasSubstr("NEWOBJ"));
  EXPECT_THAT(Refusal("\x82\x01."), HasSubstr("EXT1"));
  EXPECT_THAT(Refusal("I1\n."), HasSubstr("INT"));
  EXPECT_THAT(Refusal("\x8f."), HasSubstr("EMPTY_SET"));
  EXPECT_THAT(Refusal("\xff."), HasSubstr("unknown opcode 0xff"));
  EXPECT_THAT(Refusal("\x80\x06N."), HasSubstr("protocol 6"));
}

TEST(Pickle, RefusesBrokenStructure) {
  EXPECT_THAT(Refusal(""), HasSubstr("ends too early"));
  EXPECT_THAT(Refusal("."), HasSubstr("0 values left"));
  EXPECT_THAT(Refusal("NN."), HasSubstr("2 values left"));
  EXPECT_THAT(Refusal("N.N"), HasSubstr("1 bytes after the end"));
  EXPECT_THAT(Refusal("(N."), HasSubstr("values left"));
  EXPECT_THAT(Refusal("e."), HasSubstr("no mark"));
  EXPECT_THAT(Refusal("\x85."), HasSubstr("stack is empty"));
  EXPECT_THAT(Refusal("N(\x85."), HasSubstr("stack is empty"));
  EXPECT_THAT(Refusal("h\x07."), HasSubstr("no memo entry 7"));
  EXPECT_THAT(Refusal("]K\x01K\x02s."), HasSubstr("expected a dict"));
  EXPECT_THAT(Refusal("}(K\x01u."), HasSubstr("without a value"));
  EXPECT_THAT(Refusal("}K\x01"
                      "a."),
              HasSubstr("expected a list"));
  EXPECT_THAT(Refusal("X\xff\xff\xff\x7f."), HasSubstr("ends too early"));
  EXPECT_THAT(Refusal("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), HasSubstr("ends too early"));
  EXPECT_THAT(Refusal("X\x01\x00\x00\x00\xff."s), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal("\x8c\x03\xed\xa0\x80."), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal("\x8c\x02\xc0\x80."), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s), HasSubstr("64 bits"));
  EXPECT_THAT(Refusal("K\x01)R."), HasSubstr("a call of a integer"));
  EXPECT_THAT(Refusal("]}b."), HasSubstr("non-dict"));
  EXPECT_THAT(Refusal("ctorch\nFloatStorage\n."), HasSubstr("storage type"));
  EXPECT_THAT(Refusal("NQ."), HasSubstr("storage reference"));
}

TEST(Pickle, RefusesDuplicateAndUnusableKeys) {
  EXPECT_THAT(Refusal("}(" + Text("a") + "N" + Text("a") + "Nu."), HasSubstr("key a twice"));
  // 1 == True == 1.0 in Python.
  EXPECT_THAT(Refusal("}(K\x01N\x88Nu."), HasSubstr("key 1 twice"));
  EXPECT_THAT(Refusal("}(K\x01NG\x3f\xf0\x00\x00\x00\x00\x00\x00Nu."s), HasSubstr("key 1 twice"));
  EXPECT_THAT(Refusal("}]Ns."), HasSubstr("a list as key"));
  EXPECT_THAT(Refusal("}(K\x01K\x02\x86NK\x01K\x02\x86Nu."), HasSubstr("twice"));
  // 1 and "1" are different keys.
  EXPECT_NO_THROW(Read("}(K\x01N" + Text("1") + "Nu."));
}

TEST(Pickle, RefusesCyclesDepthAndExpansion) {
  EXPECT_THAT(Refusal("]q\x01h\x01"
                      "a."),
              HasSubstr("contains itself"));
  EXPECT_THAT(Refusal("}q\x01K\x01h\x01s."), HasSubstr("contains itself"));
  const std::string deep(PickleLimits::kDepth, ']');
  EXPECT_NO_THROW(Read(deep + std::string(PickleLimits::kDepth - 1, 'a') + "."));
  EXPECT_THAT(Refusal("]" + deep + std::string(PickleLimits::kDepth, 'a') + "."),
              HasSubstr("nested more than"));
  const std::string abyss(1000000, ']');
  EXPECT_THAT(Refusal(abyss + std::string(999999, 'a') + "."), HasSubstr("nested more than"));
  // Each list holds the previous one twice: 2^40 values when written out.
  std::string doubling = "]q";
  doubling += '\x00';
  for (int i = 0; i < 40; ++i) {
    doubling += "](h" + Little(static_cast<uint64_t>(i), 1) + "h" +
                Little(static_cast<uint64_t>(i), 1) + "eq" +
                Little(static_cast<uint64_t>(i + 1), 1);
  }
  // The 40 outer lists stay on the stack; put them into one tuple.
  EXPECT_THAT(Refusal("(" + doubling + "t."), HasSubstr("values"));
  // One long string used many times.
  std::string copies = "](X" + Little(1 << 20, 4) + std::string(1 << 20, 'x') + "q\x01";
  for (int i = 0; i < 1000; ++i) copies += "h\x01";
  EXPECT_THAT(Refusal(copies + "e."), HasSubstr("text"));
}

TEST(Pickle, TensorsInsideTheirStorageOnly) {
  const auto shape_of = [](const std::string& body) {
    return std::get<TorchTensor>(Read(body + ".").data).shape;
  };
  EXPECT_EQ(shape_of(Tensor(6, 0, {2, 3}, {3, 1})), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(shape_of(Tensor(6, 5, {}, {})), (std::vector<int64_t>{}));
  EXPECT_EQ(shape_of(Tensor(6, 6, {0, 9}, {9, 1})), (std::vector<int64_t>{0, 9}));
  const int64_t huge = int64_t{1} << 62;
  for (const std::string& body :
       {Tensor(6, 0, {2, 4}, {4, 1}), Tensor(6, 1, {2, 3}, {3, 1}), Tensor(6, 6, {}, {}),
        Tensor(6, 7, {0}, {1}), Tensor(6, 0, {2, 3}, {4, 1}), Tensor(6, 0, {huge, 4}, {4, 1}),
        Tensor(6, huge, {2, huge}, {huge, huge}), Tensor(6, 0, {huge, huge}, {0, 0})}) {
    EXPECT_THAT(Refusal(body + "."), HasSubstr("does not fit"));
  }
  EXPECT_THAT(Refusal(Tensor(6, 0, {huge}, {0}) + "."), HasSubstr("too often"));
  EXPECT_THAT(Refusal(Tensor(6, 0, {-1}, {1}) + "."), HasSubstr("below zero"));
  EXPECT_THAT(Refusal(Tensor(6, 0, {1}, {-1}) + "."), HasSubstr("below zero"));
  EXPECT_THAT(Refusal(Tensor(-6, 0, {1}, {1}) + "."), HasSubstr("below zero"));
  EXPECT_THAT(Refusal(Tensor(6, 0, {2, 3}, {1}) + "."), HasSubstr("as many strides"));
  EXPECT_THAT(Refusal(Tensor(6, 0, std::vector<int64_t>(17, 1), {1}) + "."),
              HasSubstr("17 dimensions"));
}

TEST(Pickle, OneStorageHasOneType) {
  std::string other = Tensor(6, 0, {6}, {1});
  other.replace(other.find("FloatStorage"), 12, "IntStorage");
  EXPECT_THAT(Refusal("(" + Tensor(6, 0, {6}, {1}) + other + "t."), HasSubstr("elsewhere"));
  EXPECT_THAT(Refusal("(" + Tensor(6, 0, {6}, {1}) + Tensor(7, 0, {6}, {1}) + "t."),
              HasSubstr("elsewhere"));
}

TEST(Pickle, WrittenIntegersReadBack) {
  std::vector<int64_t> values = {0, 1, 255, 256, 65535, 65536, -1, -128, -129};
  for (int bits = 7; bits < 63; ++bits) {
    for (const int64_t offset : {-1, 0, 1}) {
      values.push_back((int64_t{1} << bits) + offset);
      values.push_back(-(int64_t{1} << bits) + offset);
    }
  }
  values.push_back(std::numeric_limits<int64_t>::max());
  values.push_back(std::numeric_limits<int64_t>::min());
  for (const int64_t value : values) {
    const std::string pickle = PickleTorch({value}).pickle;
    EXPECT_EQ(Scalar<int64_t>(pickle.substr(2)), value);
  }
}

}  // namespace
}  // namespace oscar
