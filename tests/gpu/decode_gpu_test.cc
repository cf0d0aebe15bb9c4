// Decode attention on the device against float64 on the exactly reconstructed cache.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gpu/decode_exact_cases.h"
#include "gpu/decode_nan_case.h"
#include "gpu/expect_close.h"
#include "gpu/rotations.h"
#include "oscar/core/error.h"

namespace oscar::test {
namespace {

TEST(DecodeGpu, ContextLengths) {
  OSCAR_NEED_DEVICE();
  for (const int64_t tokens : {1, 7, 8, 31, 32, 33, 63, 64, 65, 127, 320, 321, 1000, 4096}) {
    DecodeCase c(Shape(32, 8), {{tokens, 0}}, static_cast<uint64_t>(tokens));
    ExpectClose(c, "quantised_" + std::to_string(tokens));
    DecodeCase rows(Shape(32, 8), {{0, tokens}}, static_cast<uint64_t>(tokens));
    ExpectClose(rows, "rows_" + std::to_string(tokens), 1e-4);
    DecodeCase both(Shape(32, 8), {{tokens, 320}}, static_cast<uint64_t>(tokens));
    ExpectClose(both, "both_" + std::to_string(tokens));
  }
}

TEST(DecodeGpu, Shapes) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape :
       {Shape(32, 8),     Shape(64, 8),    Shape(8, 1),       Shape(40, 8),     Shape(28, 4),
        Shape(32, 32),    Shape(96, 8),    Shape(16, 1),      Shape(6, 6),      Shape(5, 5),
        Shape(14, 2),     Shape(9, 3),     Shape(32, 8, 64),  Shape(8, 8, 64),  Shape(64, 8, 64),
        Shape(32, 2, 64), Shape(3, 1, 64), Shape(16, 4, 256), Shape(8, 1, 256), Shape(16, 1, 256),
        Shape(8, 8, 256)}) {
    DecodeCase c(shape, {{700, 37}, {0, 0}, {65, 0}, {0, 19}, {1, 1}}, 11);
    ExpectClose(c, Name(shape));
  }
}

TEST(DecodeGpu, GroupsAndScaleTypes) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t groups : {1, 2, 4}) {
      for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
        for (const int64_t kv_heads : {8, 2, 1}) {
          for (const int64_t group_size : {4, 7, 12}) {
            DecodeCase c(Shape(kv_heads * group_size, kv_heads, dim, groups, type),
                         {{530, 21}, {100, 3}}, 5);
            // The reference reads the stored scales: rounding them is not an error of the kernel.
            ExpectClose(c, Name(c.shape));
          }
        }
      }
    }
  }
}

TEST(DecodeGpu, NaNStaysAlone) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape : {Shape(8, 2), Shape(2, 2), Shape(16, 2), Shape(32, 2),
                                   Shape(8, 2, 64, 4), Shape(8, 2, 256)}) {
    for (const int64_t head : {int64_t{1}, shape.q_heads - 1}) {
      ExpectNaNStaysAlone(shape, head, [](DecodeCase& c) { return DeviceDecode(c).Run(); });
    }
  }
}

TEST(DecodeGpu, RaggedBatches) {
  OSCAR_NEED_DEVICE();
  for (const size_t batch : {1UL, 3UL, 8UL, 64UL, 128UL}) {
    Random random(batch);
    std::vector<RequestLengths> lengths;
    for (size_t i = 0; i < batch; ++i) {
      lengths.push_back({static_cast<int64_t>(random.Below(batch < 10 ? 3000 : 300)),
                         static_cast<int64_t>(random.Below(300))});
    }
    lengths.front() = {0, 0};
    DecodeCase c(Shape(32, 8), lengths, 17);
    c.wide_slots = batch % 2 == 0;
    ExpectClose(c, "batch_" + std::to_string(batch));
  }
}

TEST(DecodeGpu, SlotOrders) {
  OSCAR_NEED_DEVICE();
  for (const Pages pages : {Pages::kSequential, Pages::kShuffledSlots, Pages::kShuffledPages}) {
    for (const bool wide : {false, true}) {
      for (const int64_t heads : {8, 2, 1}) {
        DecodeCase c(Shape(4 * heads, heads), {{777, 50}, {1300, 9}}, 3, pages);
        c.wide_slots = wide;
        ExpectClose(c, "order_" + std::to_string(static_cast<int>(pages)));
      }
    }
  }
}

// Blocks of one or two heads copy in their own way (with up to eight query heads): all kinds of
// scales, slots in any order, pieces of less than a tile and of many, more blocks of heads than
// one, settled caches.
TEST(DecodeGpu, FewHeads) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128}) {
    for (const auto& [q_heads, kv_heads] :
         {std::pair(4, 1), std::pair(8, 1), std::pair(13, 1), std::pair(12, 3), std::pair(8, 2),
          std::pair(32, 2), std::pair(30, 6)}) {
      for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
        DecodeCase c(Shape(q_heads, kv_heads, dim, 1, type),
                     {{12301, 37}, {0, 0}, {512, 0}, {0, 19}, {129, 5}, {1, 0}}, 23,
                     Pages::kShuffledSlots);
        c.wide_slots = type == DType::kF16;
        SCOPED_TRACE(Name(c.shape));
        const DecodeResult reference = Reference(c);
        DeviceDecode device(c);
        EXPECT_LE(Compare(device.Run(), reference).output, kOutputBound);
        // One block has pieces of so many tiles that three of them are fetched early, if any.
        for (const bool settled : {false, true}) {
          device.inputs().quantised_settled = settled;
          for (const int64_t used : {1, 3}) {
            const Distance distance = Compare(device.Run(PlanOn(device, c, used)), reference);
            EXPECT_LE(distance.output, kOutputBound) << used << " " << settled;
            EXPECT_LE(distance.lse, kLseBound) << used << " " << settled;
          }
        }
      }
    }
  }
}

TEST(DecodeGpu, EveryByteValueInEveryPosition) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    DecodeCase c = EveryByteCase(dim);
    ExpectClose(c, "bytes_" + std::to_string(dim));
  }
}

TEST(DecodeGpu, OneHotChannelsAreExact) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t group_size : {1, 8, 16}) {
      DecodeCase c = OneHotCase(dim, group_size);
      DeviceDecode device(c);
      ExpectOneHotCodes(c, device.Run());
    }
  }
}

TEST(DecodeGpu, ValueRotation) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool per_head : {false, true}) {
      // Two partial results and none; with one rotation, as many as there are blocks.
      DecodeCase c(Shape(8, 2, dim), {{per_head ? 300 : 17000, 20}, {0, 0}}, 15);
      Random random(16);
      c.v_rotation = NormalMatrices(random, per_head ? 2 : 1, dim);
      c.rotation_per_head = per_head;
      ExpectClose(c, "rotation_" + std::to_string(dim));
    }
    // More rows than a multiply takes, the last ones of some, and one query head per rotation.
    for (const bool per_head : {false, true}) {
      DecodeCase c(Shape(3, 3, dim), std::vector<RequestLengths>(19, {70, 0}), 17);
      Random random(18);
      c.v_rotation = NormalMatrices(random, per_head ? 3 : 1, dim);
      c.rotation_per_head = per_head;
      ExpectClose(c, "rotation_of_many_" + std::to_string(dim));
    }
  }
}

TEST(DecodeGpu, BFloat16Output) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{600, 30}}, 18);
  const DecodeResult reference = Reference(c);
  DeviceDecode device(c);
  device.Run();
  DeviceBuffer o(c.outputs() * 2);
  LaunchDecode(device.workspace(), device.inputs(), {o.data(), DType::kBF16, nullptr},
               device.stream().get());
  device.stream().Synchronize();
  const auto stored = FromDevice<BFloat16>(o, c.outputs());
  DecodeResult result{{}, reference.lse};
  for (const BFloat16 x : stored) result.o.push_back(ToFloat(x));
  // Half a bf16 step, 2^-9 of each element, on top of the bound.
  EXPECT_LE(Compare(result, reference).output, kOutputBound + 0x1p-9);
}

TEST(DecodeGpu, MissingTensorsAreNamed) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{600, 30}}, 19);
  DeviceDecode device(c);
  device.Run();
  DecodeInputs in = device.inputs();
  in.rows.v = nullptr;
  EXPECT_THROW(LaunchDecode(device.workspace(), in, device.outputs(), device.stream().get()),
               Error);
  in = device.inputs();
  in.quantised.k_scales = nullptr;
  EXPECT_THROW(LaunchDecode(device.workspace(), in, device.outputs(), device.stream().get()),
               Error);
  in = device.inputs();
  in.quantised.v_codes += 8;
  try {
    LaunchDecode(device.workspace(), in, device.outputs(), device.stream().get());
    ADD_FAILURE() << "codes that are not aligned were taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "value codes of decode attention are not at a multiple of 16 bytes");
  }
}

}  // namespace
}  // namespace oscar::test
