// What the kernels refuse, word for word.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/cuda/decode.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/write.h"

namespace oscar {
namespace {

// Message and hint, or nothing.
template <typename Check>
std::string Refusal(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return std::string(error.what()) + "; " + error.hint();
  }
  return "";
}

std::string Writing(int64_t dim, int64_t groups) {
  return Refusal([&] { CheckCacheShape({8, dim, groups, DType::kF32}); });
}

std::string Decoding(int64_t dim, int64_t groups, int64_t group_size = 1) {
  DecodeShape shape;
  shape.cache = {8, dim, groups, DType::kF32};
  shape.q_heads = 8 * group_size;
  return Refusal([&] { CheckDecodeShape(shape); });
}

TEST(Shape, ARefusalNamesTheQueryHeads) {
  EXPECT_EQ(Decoding(128, 1, 16), "");
  EXPECT_EQ(Decoding(128, 1, 17),
            "a group of 17 query heads per KV head is not supported by the CUDA kernels; up to 16 "
            "are");
}

// A hint names groups that the refusing kernels take, all of them and no others.
TEST(Shape, AHintOnGroupsHoldsForTheHeadSize) {
  EXPECT_EQ(Writing(64, 8),
            "a row of 64 channels in 8 groups is not supported by the CUDA kernels; 1, 2 and 4 "
            "groups are");
  EXPECT_EQ(Writing(128, 16),
            "a row of 128 channels in 16 groups is not supported by the CUDA kernels; 1, 2, 4 and "
            "8 groups are");
  EXPECT_EQ(Writing(256, 3),
            "a row of 256 channels in 3 groups is not supported by the CUDA kernels; 1, 2, 4, 8 "
            "and 16 groups are");
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t groups : {-1, 0, 1, 2, 3, 4, 5, 8, 16, 32}) {
      const bool power = groups == 1 || groups == 2 || groups == 4 || groups == 8 || groups == 16;
      EXPECT_EQ(Writing(dim, groups).empty(), power && groups <= dim / 16) << dim << " " << groups;
      EXPECT_EQ(Decoding(dim, groups),
                power && groups <= 4
                    ? ""
                    : "decoding rows in " + std::to_string(groups) +
                          " groups is not supported by the CUDA kernels; 1, 2 and 4 groups are");
    }
  }
}

TEST(Shape, TheHeadSizeComesFirst) {
  const std::string expected =
      "head size 96 is not supported by the CUDA kernels; head sizes 64, 128 and 256 are";
  EXPECT_EQ(Writing(96, 3), expected);
  EXPECT_EQ(Decoding(96, 3), expected);
}

// The sentence about the tensors of a plan with tokens of both tiers; nothing where they are fine.
std::string Tensors(const DecodeInputs& in, const DecodeOutputs& out) {
  DecodeShape shape;
  shape.cache = {1, 64, 1, DType::kF32};
  shape.q_heads = 1;
  try {
    CheckDecodeTensors(PlanDecode(shape, std::vector<RequestLengths>{{3, 2}}, 1), in, out);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Shape, TensorsOfAttentionAreThereAndAligned) {
  alignas(16) static uint8_t memory[32];
  const auto as_row = [](uint8_t* at) { return reinterpret_cast<BFloat16*>(at); };
  DecodeInputs fine;
  fine.q = fine.v_rotation = as_row(memory);
  fine.quantised = {memory, memory, memory, memory, 1};
  fine.rows = {as_row(memory), as_row(memory), 1};
  fine.quantised_slots.data = fine.row_slots.data = memory + 4;  // as wide as their numbers
  const DecodeOutputs out{memory, DType::kF32, reinterpret_cast<float*>(memory + 4)};
  EXPECT_EQ(Tensors(fine, out), "");

  const std::string needs = "decode attention needs queries and an output";
  const std::string codes = "the plan has quantised tokens, but their cache is missing";
  const std::string rows = "the plan has bf16 tokens, but their cache is missing";
  using Set = std::function<void(DecodeInputs&, uint8_t*)>;
  const struct {
    std::string name, missing;
    Set set;
  } tensors[] = {{"queries", needs, [&](auto& in, auto* at) { in.q = as_row(at); }},
                 {"key codes", codes, [](auto& in, auto* at) { in.quantised.k_codes = at; }},
                 {"value codes", codes, [](auto& in, auto* at) { in.quantised.v_codes = at; }},
                 {"key scales", codes, [](auto& in, auto* at) { in.quantised.k_scales = at; }},
                 {"value scales", codes, [](auto& in, auto* at) { in.quantised.v_scales = at; }},
                 {"bf16 keys", rows, [&](auto& in, auto* at) { in.rows.k = as_row(at); }},
                 {"bf16 values", rows, [&](auto& in, auto* at) { in.rows.v = as_row(at); }},
                 {"value rotations", "", [&](auto& in, auto* at) { in.v_rotation = as_row(at); }}};
  for (const auto& [name, missing, set] : tensors) {
    DecodeInputs in = fine;
    set(in, nullptr);
    EXPECT_EQ(Tensors(in, out), missing) << name;
    set(in, memory + 8);
    EXPECT_EQ(Tensors(in, out), name + " of decode attention are not at a multiple of 16 bytes");
  }
  EXPECT_EQ(Tensors(fine, {nullptr, DType::kF32}), needs);
  EXPECT_EQ(Tensors(fine, {memory + 8, DType::kF32}),
            "outputs of decode attention are not at a multiple of 16 bytes");
  EXPECT_EQ(Tensors(fine, {memory, DType::kF16}),
            "an attention output of type f16 is not supported: f32 and bf16 are");
}

}  // namespace
}  // namespace oscar
