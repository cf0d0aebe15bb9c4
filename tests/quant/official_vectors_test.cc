// Bytes, scales and zeros of the public kernels, case by case as found in the folder of vectors:
// files by the prefix that names the entry point, cases by their groups, sizes by attributes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/quant/quantiser.h"
#include "support/golden.h"
#include "support/hdf5_reader.h"

namespace oscar {
namespace {

using test::Hdf5Data;
using test::Hdf5Reader;

std::vector<std::filesystem::path> FilesWithPrefix(const std::string& prefix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(test::OfficialVectors() / "quant")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".h5")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

struct Rows {
  int64_t count = 0, dim = 0;
  std::vector<float> values;
  MatrixView<const float> view() const { return {values.data(), count, dim}; }
};

Rows ReadBFloat16Rows(const Hdf5Reader& file, const std::string& path) {
  const Hdf5Data<uint16_t> raw = file.Read<uint16_t>(path);
  Rows rows;
  rows.dim = raw.shape.back();
  rows.count = static_cast<int64_t>(raw.data.size()) / rows.dim;
  for (const uint16_t bits : raw.data) rows.values.push_back(ToFloat(BFloat16{bits}));
  return rows;
}

// Equality of numbers: the sign of zero aside, infinities included.
void ExpectSame(const std::vector<float>& expected, const std::vector<float>& found,
                const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  int64_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == found[i]) continue;
    if (++different <= 3) {
      ADD_FAILURE() << what << " at " << i << ": expected " << expected[i] << ", found "
                    << found[i];
    }
  }
  EXPECT_EQ(different, 0) << what;
}

void ExpectSame(const std::vector<uint8_t>& expected, const std::vector<uint8_t>& found,
                const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  int64_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) different += expected[i] == found[i] ? 0 : 1;
  EXPECT_EQ(different, 0) << what << ": different bytes of " << expected.size();
}

std::vector<float> Widened(const Hdf5Data<uint16_t>& raw) {
  std::vector<float> values;
  for (const uint16_t bits : raw.data) values.push_back(ToFloat(BFloat16{bits}));
  return values;
}

void CompareCase(const Hdf5Reader& file, const std::string& group, const QuantisedRows& found,
                 const std::string& what) {
  ExpectSame(file.Read<uint8_t>(group + "/packed").data, found.packed, what + " bytes");
  if (file.Has(group + "/scale_bf16")) {
    ExpectSame(Widened(file.Read<uint16_t>(group + "/scale_bf16")), found.scale, what + " scale");
    ExpectSame(Widened(file.Read<uint16_t>(group + "/zero_bf16")), found.zero, what + " zero");
  } else {
    ExpectSame(file.Read<float>(group + "/scale").data, found.scale, what + " scale");
    ExpectSame(file.Read<float>(group + "/zero").data, found.zero, what + " zero");
  }
}

QuantiserSpec SpecOf(const Hdf5Reader& file, const std::string& group) {
  QuantiserSpec spec;
  spec.group_size = file.Attribute<int64_t>(group, "G");
  spec.clip = file.Attribute<double>(group, "clip_ratio");
  if (file.Attribute<int64_t>(group, "lloyd_max") != 0) spec.codebook = Codebook::kLloydMax;
  if (file.Has(group + "/scale_bf16")) spec.scale_type = ScaleType::kBF16;
  return spec;
}

// Calls visit(file, case group, name) for each G<G>/<case>; returns the number of cases.
template <typename Visit>
int64_t ForEachCase(const std::string& prefix, const Visit& visit) {
  int64_t cases = 0;
  for (const auto& path : FilesWithPrefix(prefix)) {
    const Hdf5Reader file(path);
    for (const std::string& size : file.Members("/")) {
      if (!size.starts_with("G")) continue;
      for (const std::string& name : file.Members("/" + size)) {
        const std::string group = "/" + size + "/" + name;
        visit(file, group, path.filename().string() + group);
        ++cases;
      }
    }
  }
  return cases;
}

void PrefillCases(const std::string& prefix) {
  const int64_t cases = ForEachCase(prefix, [](const Hdf5Reader& file, const std::string& group,
                                               const std::string& what) {
    const Rows x = ReadBFloat16Rows(file, "/x_bf16");
    const QuantiserSpec spec = SpecOf(file, group);
    EXPECT_EQ(ClipIndex(spec.clip, x.dim), file.Attribute<int64_t>(group, "clip_index")) << what;
    CompareCase(file, group, Quantise(x.view(), spec, 2), what);
    if (!file.Has(group + "/tau")) return;
    const std::vector<float> tau = file.Read<float>(group + "/tau").data;
    std::vector<float> found;
    for (int64_t i = 0; i < x.count; ++i) {
      found.push_back(OrderStatistic(x.view().Row(i), x.dim, ClipIndex(spec.clip, x.dim)));
    }
    ExpectSame(tau, found, what + " tau");
  });
  EXPECT_GT(cases, 0) << "no " << prefix << " file in " << test::OfficialVectors();
}

TEST(OfficialVectors, PrefillWriterWithClipping) { PrefillCases("quant_clip_"); }
TEST(OfficialVectors, PrefillWriterInLloydMaxMode) { PrefillCases("quant_lloyd_"); }
TEST(OfficialVectors, PrefillWriterWithBFloat16Metadata) { PrefillCases("quant_scale_bf16_"); }

TEST(OfficialVectors, PlainWriterAndItsReader) {
  int64_t cases = 0;
  for (const auto& path : FilesWithPrefix("quant_plain_")) {
    const Hdf5Reader file(path);
    const Rows x = ReadBFloat16Rows(file, "/x_bf16");
    for (const std::string& size : file.Members("/")) {
      if (!size.starts_with("G")) continue;
      const std::string group = "/" + size;
      const std::string what = path.filename().string() + group;
      const QuantiserSpec spec = SpecOf(file, group);
      const QuantisedRows stored = Quantise(x.view(), spec, 1);
      CompareCase(file, group, stored, what);
      std::vector<float> back(x.values.size());
      Dequantise(stored, {back.data(), x.count, x.dim});
      ExpectSame(file.Read<float>(group + "/dequant_f32").data, back, what + " dequant_f32");
      ++cases;
    }
  }
  EXPECT_GT(cases, 0) << "no quant_plain_ file in " << test::OfficialVectors();
}

// Only the rows of requests whose flush is due are written; the others stay zero in the files.
template <typename T>
void ZeroUnwritten(const std::vector<uint8_t>& written, std::vector<T>& values) {
  const size_t per_row = values.size() / written.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (written[i / per_row] == 0) values[i] = 0;
  }
}

TEST(OfficialVectors, DecodeFlush) {
  const int64_t cases = ForEachCase("quant_flush_", [](const Hdf5Reader& file,
                                                       const std::string& group,
                                                       const std::string& what) {
    const std::vector<int32_t> mask = file.Read<int32_t>(group + "/valid_mask").data;
    const std::vector<uint8_t> written(mask.begin(), mask.end());
    for (const std::string& layer : file.Members(group)) {
      if (!layer.starts_with("layer_")) continue;
      for (const std::string side : {"k", "v"}) {
        const Rows x = ReadBFloat16Rows(file, "/" + layer + "/" + side + "_bf16");
        QuantiserSpec spec;
        spec.group_size = file.Attribute<int64_t>(group, "G");
        spec.clip = file.Attribute<double>(group, side + "_clip_ratio");
        spec.clip_mode = ClipMode::kBisect;
        QuantisedRows found = Quantise(x.view(), spec, 1);
        ZeroUnwritten(written, found.packed);
        ZeroUnwritten(written, found.scale);
        ZeroUnwritten(written, found.zero);
        CompareCase(file, group + "/" + layer + "/" + side, found, what + "/" + layer + "/" + side);
      }
    }
  });
  EXPECT_GT(cases, 0) << "no quant_flush_ file in " << test::OfficialVectors();
}

TEST(OfficialVectors, ScatteredSlots) {
  const int64_t cases = ForEachCase(
      "quant_slots_",
      [](const Hdf5Reader& file, const std::string& group, const std::string& what) {
        const Rows x = ReadBFloat16Rows(file, "/x_bf16");
        const std::vector<int64_t> slots = file.Read<int64_t>("/loc").data;
        const int64_t limit = file.Attribute<int64_t>("/", "hp_global_offset");
        const auto heads = static_cast<size_t>(file.Attribute<int64_t>("/", "H"));
        const QuantisedRows rows = Quantise(x.view(), SpecOf(file, group), 1);
        // Rows to slots, as the writer scatters them; slots of the exact tier are left alone.
        QuantisedRows found;
        const auto slot_count = static_cast<size_t>(file.Read<uint8_t>(group + "/packed").shape[0]);
        const auto scatter = [&](const auto& from, auto& to) {
          const size_t per_token = from.size() / slots.size();
          to.assign(slot_count * per_token, 0);
          for (size_t t = 0; t < slots.size(); ++t) {
            if (slots[t] >= limit) continue;
            const auto target = static_cast<size_t>(slots[t]) * per_token;
            for (size_t i = 0; i < per_token; ++i) to[target + i] = from[t * per_token + i];
          }
        };
        ASSERT_EQ(rows.packed.size() % (slots.size() * heads), 0U);
        scatter(rows.packed, found.packed);
        scatter(rows.scale, found.scale);
        scatter(rows.zero, found.zero);
        CompareCase(file, group, found, what);
      });
  EXPECT_GT(cases, 0) << "no quant_slots_ file in " << test::OfficialVectors();
}

}  // namespace
}  // namespace oscar
