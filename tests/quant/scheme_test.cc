#include "oscar/quant/scheme.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/quant/methods.h"
#include "oscar/quant/packing.h"
#include "oscar/quant/windows.h"

namespace oscar {
namespace {

LayerShape ShapeOf(int64_t q_heads, int64_t kv_heads, int64_t k_dim, int64_t v_dim) {
  LayerShape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.k_dim = k_dim;
  shape.v_dim = v_dim;
  return shape;
}

TEST(QuantiserSpec, BitsPerElementOfKnownRecipes) {
  const auto bits = [](int64_t dim, int64_t group, ScaleType type) {
    QuantiserSpec spec;
    spec.group_size = group;
    spec.scale_type = type;
    return spec.BitsPerElement(dim);
  };
  EXPECT_EQ(bits(128, 128, ScaleType::kF32), 2.5);
  EXPECT_EQ(bits(128, 0, ScaleType::kF32), 2.5);
  EXPECT_DOUBLE_EQ(bits(96, 96, ScaleType::kF32), 2 + 64.0 / 96);
  EXPECT_EQ(bits(64, 64, ScaleType::kF32), 3.0);
  EXPECT_EQ(bits(256, 256, ScaleType::kF32), 2.25);
  EXPECT_EQ(bits(128, 128, ScaleType::kBF16), 2.25);
  EXPECT_EQ(bits(128, 128, ScaleType::kF16), 2.25);
  EXPECT_EQ(bits(128, 32, ScaleType::kF16), 3.0);
  EXPECT_EQ(bits(128, 32, ScaleType::kF32), 4.0);
  EXPECT_EQ(bits(128, 64, ScaleType::kF16), 2.5);
  QuantiserSpec exact;
  exact.bits = 16;
  EXPECT_EQ(exact.BitsPerElement(64), 16);
}

TEST(KvScheme, BitsPerElementAtAContextIncludeTheWindows) {
  const LayerShape shape = ShapeOf(32, 8, 128, 128);
  const auto at = [&](ScaleType type, int64_t tokens) {
    MethodSettings settings;
    settings.scale_type = type;
    return BuildScheme(MethodFromName("naive"), {{0, shape}}, settings, nullptr)
        .BitsPerElement(shape, 0, tokens);
  };
  // The published 2.28 and 2.38, and what the shipped float32 metadata cost.
  EXPECT_NEAR(at(ScaleType::kF16, 131072), 2.2836, 5e-5);
  EXPECT_NEAR(at(ScaleType::kF16, 32768), 2.3843, 5e-5);
  EXPECT_NEAR(at(ScaleType::kF32, 131072), 2.533, 5e-4);
  EXPECT_NEAR(at(ScaleType::kF32, 32768), 2.632, 5e-4);
  EXPECT_EQ(at(ScaleType::kF32, 320), 16);
  EXPECT_EQ(at(ScaleType::kF32, 1), 16);
  EXPECT_EQ(at(ScaleType::kF32, 321), (2.5 + 16 * 320) / 321);
  // Different head dims: each element counts once.
  const LayerShape uneven = ShapeOf(4, 2, 192, 128);
  MethodSettings settings;
  settings.use_windows = false;
  const KvScheme scheme = BuildScheme(MethodFromName("naive"), {{3, uneven}}, settings, nullptr);
  EXPECT_DOUBLE_EQ(scheme.BitsPerElement(uneven, 3, 100),
                   ((2 + 64.0 / 192) * 192 + 2.5 * 128) / 320);
}

TEST(QuantiserSpec, ValidateNamesTheFault) {
  const auto refused = [](const QuantiserSpec& spec, int64_t dim,
                          ErrorCode code = ErrorCode::kUsage) {
    try {
      spec.Validate(dim);
    } catch (const Error& error) {
      return error.code() == code;
    }
    return false;
  };
  QuantiserSpec spec;
  EXPECT_FALSE(refused(spec, 64));
  EXPECT_TRUE(refused(spec, 6, ErrorCode::kUnsupported));
  EXPECT_TRUE(refused(spec, 0, ErrorCode::kUnsupported));
  for (const int64_t group : {-1, 3, 65, 128}) {
    spec.group_size = group;
    EXPECT_TRUE(refused(spec, 64)) << group;
  }
  spec.group_size = 0;
  for (const double clip : {-0.1, 1.01, std::nan(""), std::numeric_limits<double>::infinity()}) {
    spec.clip = clip;
    EXPECT_TRUE(refused(spec, 64)) << clip;
  }
  spec.clip = 0;
  spec.codebook = Codebook::kLloydMax;
  EXPECT_FALSE(refused(spec, 64));
  spec.group_size = 32;
  EXPECT_TRUE(refused(spec, 64));
  spec = {};
  spec.bits = 3;
  EXPECT_TRUE(refused(spec, 64));
}

TEST(Windows, RegionsAtTheEdges) {
  const Windows windows;  // 64 and 256
  struct Row {
    int64_t length, sink, middle, recent;
  };
  for (const Row& row :
       {Row{0, 0, 0, 0}, Row{1, 1, 0, 0}, Row{63, 63, 0, 0}, Row{64, 64, 0, 0}, Row{65, 64, 0, 1},
        Row{319, 64, 0, 255}, Row{320, 64, 0, 256}, Row{321, 64, 1, 256}, Row{328, 64, 8, 256}}) {
    EXPECT_EQ(CountRegions(row.length, windows), (RegionSizes{row.sink, row.middle, row.recent}))
        << row.length;
    // The rule of the cache, counted key by key from the last query.
    int64_t quantised = 0;
    for (int64_t key = 0; key < row.length; ++key) {
      quantised += windows.Quantised(row.length - 1, key) ? 1 : 0;
    }
    EXPECT_EQ(quantised, row.middle) << row.length;
  }
  EXPECT_EQ(windows.ShortestUseful(), 321);
}

TEST(Windows, SlidingWindowsHideTheOldestKeys) {
  for (const Windows& windows :
       {Windows{4, 8}, Windows{0, 8}, Windows{4, 0}, Windows{4, 8, 8}, Windows{0, 3, 5}}) {
    for (const int64_t sliding : {1, 3, 4, 7, 8, 9, 12, 13, 40, 1000}) {
      int64_t most = 0;
      for (int64_t length = 0; length < 45; ++length) {
        RegionSizes expected;
        for (int64_t key = std::max<int64_t>(0, length - sliding); key < length; ++key) {
          const bool quantised = windows.Quantised(length - 1, key);
          ++(quantised ? expected.middle : key < windows.sink ? expected.sink : expected.recent);
        }
        EXPECT_EQ(CountRegions(length, windows, sliding), expected) << length << " " << sliding;
        most = std::max(most, expected.middle);
      }
      LayerShape shape;
      shape.window = sliding;
      EXPECT_EQ(SeesQuantisedKeys(shape, windows), most > 0) << sliding;
    }
  }
  EXPECT_TRUE(SeesQuantisedKeys({}, {4, 8}));
}

TEST(Windows, LayersKeptExactAreNamedUnlessTheyAreAll) {
  LayerShape full, narrow;
  narrow.window = 8;
  EXPECT_TRUE(LayersKeptExact({{0, full}, {1, full}}, {4, 8}, 40).empty());
  EXPECT_EQ(LayersKeptExact({{0, narrow}, {1, full}, {2, narrow}}, {4, 8}, 40),
            (std::vector<int>{0, 2}));
  EXPECT_TRUE(LayersKeptExact({{3, narrow}}, {4, 7}, 40).empty());
  try {
    LayersKeptExact({{3, narrow}}, {4, 8}, 40);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kData);
    EXPECT_STREQ(
        e.what(),
        "no position is quantised: the sliding window of 8 tokens of layer 3 lies within "
        "the 8 recent tokens, and so does that of every layer (sink 4, longest sequence 40 "
        "tokens)");
  }
}

TEST(Packing, RequirePackableNamesFileLayerAndSide) {
  LayerShape good;
  good.k_dim = 4;
  good.v_dim = 96;
  RequirePackable({{0, good}, {1, good}}, "a.trace.h5");
  for (const bool key : {true, false}) {
    for (const int64_t dim : {0, 1, 2, 6, 63, 66}) {
      LayerShape bad = good;
      (key ? bad.k_dim : bad.v_dim) = dim;
      try {
        RequirePackable({{0, good}, {7, bad}}, "a.trace.h5");
        ADD_FAILURE() << dim;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
        EXPECT_EQ(std::string(e.what()), "a.trace.h5: layer 7: head dim " + std::to_string(dim) +
                                             " of " + (key ? "keys" : "values") +
                                             " cannot be packed in 2 bits: expected a multiple of "
                                             "4");
      }
    }
  }
}

TEST(KvScheme, BitsCountWhatTheLastTokenSees) {
  LayerShape full;
  full.kv_heads = 1;
  full.k_dim = full.v_dim = 64;
  LayerShape narrow = full;
  narrow.window = 20;
  KvScheme scheme;
  scheme.windows = {4, 8};
  scheme.layers[0];
  scheme.layers[1];
  // 2 bits and a float32 scale and zero per 64 channels: 3 bits.
  EXPECT_DOUBLE_EQ(scheme.BitsPerElement(full, 0, 40), (28 * 3 + 12 * 16) / 40.0);
  EXPECT_DOUBLE_EQ(scheme.BitsPerElement(narrow, 1, 40), (12 * 3 + 8 * 16) / 20.0);
  EXPECT_DOUBLE_EQ(MeanBitsPerElement(scheme, {{0, full}, {1, narrow}}, 40),
                   (40 * 3 + 20 * 16) / 60.0);
  scheme.windows = {4, 20};
  EXPECT_DOUBLE_EQ(scheme.BitsPerElement(narrow, 1, 40), 16);
}

TEST(Windows, EnginesThatKeepWholePagesLoseThePartialOne) {
  for (const int64_t page : {8, 16, 64}) EXPECT_EQ(FloorSinkToPages({}, page).sink, 64) << page;
  EXPECT_EQ(FloorSinkToPages({}, 128).sink, 0);
  EXPECT_EQ(FloorSinkToPages({100, 256}, 16), (Windows{96, 256}));
  EXPECT_EQ(FloorSinkToPages({100, 256, 8}, 16), (Windows{96, 256, 8}));
  EXPECT_EQ(WindowsText({64, 256}), "sink 64 and recent 256");
  EXPECT_EQ(WindowsText({64, 256, 8}), "sink 64 and recent 256 with flush 8");
}

TEST(Methods, EveryRowBuildsAndNamesAreUnique) {
  const std::map<int, LayerShape> layers = {{3, ShapeOf(4, 2, 64, 64)}, {7, ShapeOf(6, 3, 96, 64)}};
  ModelRotations rotations;
  rotations.tag = "tag";
  for (const auto& [layer, shape] : layers) {
    for (const bool key : {true, false}) {
      RotationData data;
      data.dim = key ? shape.k_dim : shape.v_dim;
      data.heads = layer == 7 ? shape.kv_heads : 0;
      const int64_t count = std::max<int64_t>(data.heads, 1);
      data.rotation.assign(static_cast<size_t>(count * data.dim * data.dim), 0);
      (key ? rotations.key : rotations.value)[layer] = data;
    }
  }
  rotations.key[3].clip = 0.9;
  std::set<std::string> names;
  for (const MethodRow& row : MethodTable()) {
    const KvScheme scheme = BuildScheme(row, layers, {}, &rotations);
    EXPECT_TRUE(names.insert(scheme.name).second) << scheme.name;
    EXPECT_EQ(&MethodFromName(row.name), &row);
    EXPECT_EQ(scheme.layers.size(), 2U);
    EXPECT_EQ(scheme.ForLayer(3).key.quantiser.bits, row.quantises ? 2 : 16);
    EXPECT_THROW(scheme.ForLayer(4), Error);
    if (row.needs_rotations) {
      EXPECT_EQ(scheme.ForLayer(3).key.quantiser.clip, 0.9);
      EXPECT_EQ(scheme.ForLayer(7).key.quantiser.clip, kPublicKeyClip);
      EXPECT_EQ(scheme.ForLayer(7).value.quantiser.clip, kPublicValueClip);
      EXPECT_EQ(scheme.ForLayer(7).key.transform.matrices.size(), 3U);
      EXPECT_NE(scheme.name.find("tag"), std::string::npos);
    }
  }
  MethodSettings settings;
  settings.key_clip = 0.8;
  EXPECT_EQ(BuildScheme(MethodFromName("oscar"), layers, settings, &rotations)
                .ForLayer(3)
                .key.quantiser.clip,
            0.8);
  EXPECT_THROW(MethodFromName("quarot"), Error);
}

TEST(Methods, RefuseRotationsOfAnotherModel) {
  ModelRotations rotations;
  RotationData data;
  data.dim = 64;
  data.rotation.assign(64 * 64, 0);
  rotations.key[0] = rotations.value[0] = data;
  const MethodRow& oscar = MethodFromName("oscar");
  const auto code = [&](const std::map<int, LayerShape>& layers) {
    try {
      BuildScheme(oscar, layers, {}, &rotations);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kDevice;
  };
  EXPECT_EQ(code({{1, ShapeOf(4, 2, 64, 64)}}), ErrorCode::kMismatch);   // layer id
  EXPECT_EQ(code({{0, ShapeOf(4, 2, 128, 64)}}), ErrorCode::kMismatch);  // head dim of K
  EXPECT_EQ(code({{0, ShapeOf(4, 2, 64, 128)}}), ErrorCode::kMismatch);  // head dim of V
  rotations.key[0].heads = 3;
  rotations.key[0].rotation.assign(3 * 64 * 64, 0);
  EXPECT_EQ(code({{0, ShapeOf(4, 2, 64, 64)}}), ErrorCode::kMismatch);  // heads
}

}  // namespace
}  // namespace oscar
