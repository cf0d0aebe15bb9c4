// Rows and bytes of the public INT2 writers (official_vectors/quant), as jobs of the write kernel
// with what each must leave behind. Whatever the folder holds is taken, whatever its sizes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "oscar/cuda/write.h"
#include "support/golden.h"
#include "support/hdf5_reader.h"

namespace oscar::test {

struct WriteVector {
  std::string name;
  CacheShape shape;
  int64_t tokens = 0, slots = 0;
  std::vector<BFloat16> rows;           // [tokens, heads, dim]
  std::vector<int64_t> source, target;  // token i is row source[i] and goes to slot target[i]
  int64_t row_slot_offset = 0;          // tokens with slots from here on are dropped
  double clip = 0;
  ClipRule rule = ClipRule::kOrderStatistic;
  std::vector<uint8_t> packed;     // [slots, heads, dim / 4]; zero where nothing is written
  std::vector<float> scale, zero;  // [slots, heads, groups]

  WriteJob Job() const {
    WriteJob job;
    job.tokens = tokens;
    job.heads = shape.heads;
    job.row_slot_offset = row_slot_offset;
    job.clip_index = ClipIndexOf(clip, shape.dim);
    job.clip_rule = rule;
    return job;
  }
};

// What a writer left in zeroed buffers.
struct WrittenBytes {
  std::vector<uint8_t> codes, scales;

  explicit WrittenBytes(const WriteVector& v)
      : codes(static_cast<size_t>(v.slots * v.shape.heads * v.shape.CodeBytes())),
        scales(static_cast<size_t>(v.slots * v.shape.heads * v.shape.ScaleBytes())) {}
};

inline std::vector<BFloat16> AsBFloat16(const std::vector<uint16_t>& bits) {
  std::vector<BFloat16> x;
  for (const uint16_t b : bits) x.push_back(BFloat16{b});
  return x;
}

inline std::vector<float> Widened(const std::vector<uint16_t>& bits) {
  std::vector<float> x;
  for (const uint16_t b : bits) x.push_back(ToFloat(BFloat16{b}));
  return x;
}

class WriteVectorReader {
 public:
  // Cases of modes that the kernels do not have.
  int64_t lloyd_cases = 0;

  std::vector<WriteVector> Read() {
    const auto folder = OfficialVectors() / "quant";
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".h5") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& path : files) {
      const Hdf5Reader file(path);
      name_ = path.filename().string();
      for (const std::string& size : file.Members("/")) {
        if (!size.starts_with("G")) continue;
        if (file.Has("/" + size + "/packed")) {
          ReadPrefill(file, "/" + size);
          continue;
        }
        for (const std::string& member : file.Members("/" + size)) {
          const std::string group = "/" + size + "/" + member;
          name_.starts_with("quant_flush_") ? ReadFlush(file, group) : ReadPrefill(file, group);
        }
      }
    }
    return std::move(vectors_);
  }

 private:
  static void ReadExpected(const Hdf5Reader& file, const std::string& group, WriteVector& v) {
    const Hdf5Data<uint8_t> packed = file.Read<uint8_t>(group + "/packed");
    v.slots = packed.shape[0];
    v.packed = packed.data;
    v.shape.scale_type = DType::kF32;
    if (file.Has(group + "/scale_bf16")) {
      v.shape.scale_type = DType::kBF16;
      v.scale = Widened(file.Read<uint16_t>(group + "/scale_bf16").data);
      v.zero = Widened(file.Read<uint16_t>(group + "/zero_bf16").data);
    } else {
      v.scale = file.Read<float>(group + "/scale").data;
      v.zero = file.Read<float>(group + "/zero").data;
    }
  }

  static void ReadRows(const Hdf5Reader& file, const std::string& path, int64_t group_size,
                       WriteVector& v) {
    const Hdf5Data<uint16_t> x = file.Read<uint16_t>(path);
    v.rows = AsBFloat16(x.data);
    v.tokens = x.shape[0];
    v.shape.heads = x.shape[1];
    v.shape.dim = x.shape[2];
    v.shape.groups = x.shape[2] / group_size;
    v.source.resize(static_cast<size_t>(v.tokens));
    std::iota(v.source.begin(), v.source.end(), int64_t{0});
    v.target = v.source;
  }

  void ReadPrefill(const Hdf5Reader& file, const std::string& group) {
    if (file.Attribute<int64_t>(group, "lloyd_max") != 0) {
      ++lloyd_cases;
      return;
    }
    WriteVector v;
    v.name = name_ + group;
    ReadRows(file, "/x_bf16", file.Attribute<int64_t>(group, "G"), v);
    v.clip = file.Attribute<double>(group, "clip_ratio");
    ReadExpected(file, group, v);
    v.row_slot_offset = v.slots;
    if (file.Has("/loc")) {
      v.target = file.Read<int64_t>("/loc").data;
      v.row_slot_offset = file.Attribute<int64_t>("/", "hp_global_offset");
    }
    vectors_.push_back(std::move(v));
  }

  // The window's rows, in another order than they are flushed in; rows of requests whose flush is
  // not due go nowhere.
  void ReadFlush(const Hdf5Reader& file, const std::string& group) {
    const std::vector<int32_t> due = file.Read<int32_t>(group + "/valid_mask").data;
    for (const std::string& layer : file.Members(group)) {
      if (!layer.starts_with("layer_")) continue;
      for (const std::string side : {"k", "v"}) {
        WriteVector v;
        v.name = name_ + group + "/" + layer + "/" + side;
        ReadRows(file, "/" + layer + "/" + side + "_bf16", file.Attribute<int64_t>(group, "G"), v);
        v.clip = file.Attribute<double>(group, side + "_clip_ratio");
        v.rule = ClipRule::kBisection;
        ReadExpected(file, group + "/" + layer + "/" + side, v);
        v.row_slot_offset = v.slots;
        std::vector<BFloat16> shuffled(v.rows.size());
        const auto row = static_cast<size_t>(v.shape.heads * v.shape.dim);
        const auto tokens = static_cast<size_t>(v.tokens);
        for (size_t i = 0; i < tokens; ++i) {
          const size_t at = tokens - 1 - i;
          v.source[i] = static_cast<int64_t>(at);
          std::copy_n(v.rows.begin() + static_cast<std::ptrdiff_t>(i * row), row,
                      shuffled.begin() + static_cast<std::ptrdiff_t>(at * row));
          if (due[i] == 0) v.target[i] = v.row_slot_offset + static_cast<int64_t>(i);
        }
        v.rows = std::move(shuffled);
        vectors_.push_back(std::move(v));
      }
    }
  }

  std::string name_;
  std::vector<WriteVector> vectors_;
};

// Bytes must be equal; scales and zeros equal numbers (the sign of zero aside).
inline void ExpectOfficial(const WriteVector& v, const WrittenBytes& found) {
  int64_t bytes = 0, scales = 0, zeros = 0;
  for (size_t i = 0; i < v.packed.size(); ++i) bytes += v.packed[i] != found.codes[i] ? 1 : 0;
  const auto stored = [&](size_t index) {
    if (v.shape.scale_type == DType::kF32) {
      float x;
      std::memcpy(&x, found.scales.data() + 4 * index, 4);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, found.scales.data() + 2 * index, 2);
    return ToFloat(BFloat16{bits});
  };
  for (size_t i = 0; i < v.scale.size(); ++i) {
    scales += v.scale[i] != stored(2 * i) ? 1 : 0;
    zeros += v.zero[i] != stored(2 * i + 1) ? 1 : 0;
  }
  EXPECT_EQ(bytes, 0) << v.name << ": different bytes of " << v.packed.size();
  EXPECT_EQ(scales, 0) << v.name << ": different scales of " << v.scale.size();
  EXPECT_EQ(zeros, 0) << v.name << ": different zeros of " << v.zero.size();
}

}  // namespace oscar::test
