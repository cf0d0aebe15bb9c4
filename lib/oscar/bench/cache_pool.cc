#include "oscar/bench/cache_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "oscar/core/random.h"

namespace oscar {
namespace {

constexpr int64_t kBlockBytes = int64_t{64} << 20;

// Fills a buffer by repeating a block of host memory.
void FillFrom(DeviceBuffer& buffer, const std::vector<uint8_t>& block) {
  const auto size = static_cast<int64_t>(block.size());
  for (int64_t at = 0; at < buffer.bytes(); at += size) {
    buffer.Upload(block.data(), std::min(size, buffer.bytes() - at), at);
  }
}

std::vector<uint8_t> RandomBlock(int64_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> block(static_cast<size_t>(bytes));
  for (size_t i = 0; i + 8 <= block.size(); i += 8) {
    const uint64_t x = random.Next();
    std::memcpy(block.data() + i, &x, 8);
  }
  return block;
}

// Scales of 0.2 to 0.4 and zeros of 1 to 2, as rotated rows have them.
std::vector<uint8_t> ScaleBlock(DType type, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> block;
  for (int i = 0; i < (1 << 21); ++i) {
    const auto x =
        static_cast<float>(i % 2 == 0 ? 0.2 + 0.2 * random.Uniform() : 1 + random.Uniform());
    const size_t at = block.size();
    block.resize(at + DTypeSize(type));
    if (type == DType::kF32) {
      std::memcpy(block.data() + at, &x, 4);
    } else {
      const uint16_t bits = type == DType::kF16 ? ToFloat16(x).bits : ToBFloat16(x).bits;
      std::memcpy(block.data() + at, &bits, 2);
    }
  }
  return block;
}

std::vector<uint8_t> RowBlock(uint64_t seed) {
  const std::vector<BFloat16> rows = NormalRows(kBlockBytes / 8, seed, 0.7);
  std::vector<uint8_t> block(rows.size() * 2);
  std::memcpy(block.data(), rows.data(), block.size());
  return block;
}

int64_t WholePages(int64_t tokens) {
  return (tokens + kSlotsPerPage - 1) / kSlotsPerPage * kSlotsPerPage;
}

}  // namespace

DeviceBuffer Uploaded(const void* data, int64_t bytes) {
  DeviceBuffer buffer(std::max<int64_t>(bytes, 16));
  if (bytes > 0) buffer.Upload(data, bytes);
  return buffer;
}

std::vector<BFloat16> NormalRows(int64_t count, uint64_t seed, double sd) {
  Random random(seed);
  std::vector<BFloat16> rows;
  rows.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(ToBFloat16(static_cast<float>(sd * random.Normal())));
  }
  return rows;
}

std::vector<int32_t> PageSlots(int64_t count, bool shuffled, uint64_t seed) {
  std::vector<int32_t> pages(static_cast<size_t>(count / kSlotsPerPage));
  std::iota(pages.begin(), pages.end(), 0);
  Random random(seed);
  for (size_t i = shuffled ? pages.size() : 0; i > 1; --i) {
    std::swap(pages[i - 1], pages[random.Below(i)]);
  }
  std::vector<int32_t> slots;
  slots.reserve(pages.size() * kSlotsPerPage);
  for (const int32_t page : pages) {
    for (int64_t i = 0; i < kSlotsPerPage; ++i) {
      slots.push_back(static_cast<int32_t>(kSlotsPerPage * page + i));
    }
  }
  return slots;
}

int64_t CopiesBeyondL2(int64_t bytes, int64_t l2_bytes) {
  return std::max<int64_t>(1, (8 * l2_bytes + bytes - 1) / std::max<int64_t>(bytes, 1));
}

CachePool::CachePool(const DecodeCase& c, int64_t copies) : shape_(c.shape.cache) {
  const RequestLengths each = c.Each();
  quantised_.slots = WholePages(copies * c.batch * each.quantised);
  rows_.slots = WholePages(copies * c.batch * each.rows);
  if (quantised_.slots > 0) {
    const std::vector<uint8_t> codes = RandomBlock(kBlockBytes, 1);
    const std::vector<uint8_t> scales = ScaleBlock(shape_.scale_type, 2);
    for (DeviceBuffer* buffer : {&quantised_.k, &quantised_.v}) {
      *buffer = DeviceBuffer(quantised_.slots * shape_.heads * shape_.CodeBytes());
      FillFrom(*buffer, codes);
    }
    for (DeviceBuffer* buffer : {&quantised_.k_scales, &quantised_.v_scales}) {
      *buffer = DeviceBuffer(quantised_.slots * shape_.heads * shape_.ScaleBytes());
      FillFrom(*buffer, scales);
    }
  }
  if (rows_.slots > 0) {
    const std::vector<uint8_t> block = RowBlock(4);
    for (DeviceBuffer* buffer : {&rows_.k, &rows_.v}) {
      *buffer = DeviceBuffer(rows_.slots * shape_.heads * shape_.dim * 2);
      FillFrom(*buffer, block);
    }
  }
  shuffled_ = !c.shuffled;
  Order(c.shuffled);
}

bool CachePool::Serves(const DecodeCase& c, int64_t copies) const {
  const CacheShape& s = c.shape.cache;
  const RequestLengths each = c.Each();
  return s.heads == shape_.heads && s.dim == shape_.dim && s.groups == shape_.groups &&
         s.scale_type == shape_.scale_type &&
         copies * c.batch * each.quantised <= quantised_.slots &&
         copies * c.batch * each.rows <= rows_.slots;
}

void CachePool::Order(bool shuffled) {
  if (shuffled == shuffled_) return;
  shuffled_ = shuffled;
  for (Tier* tier : {&quantised_, &rows_}) {
    const std::vector<int32_t> slots = PageSlots(tier->slots, shuffled, 3);
    tier->list = Uploaded(slots.data(), static_cast<int64_t>(slots.size()) * 4);
  }
}

DecodeInputs CachePool::Inputs(const DecodeCase& c, int64_t i) const {
  const RequestLengths each = c.Each();
  const auto at = [&](int64_t tokens, int64_t slots) {
    return tokens == 0 ? 0 : i % std::max<int64_t>(1, slots / tokens) * tokens;
  };
  DecodeInputs in;
  in.quantised = {quantised_.k.As<uint8_t>(), quantised_.v.As<uint8_t>(),
                  quantised_.k_scales.data(), quantised_.v_scales.data(), quantised_.slots};
  in.rows = {rows_.k.As<BFloat16>(), rows_.v.As<BFloat16>(), rows_.slots};
  in.quantised_slots = {
      quantised_.list.As<int32_t>() + at(c.batch * each.quantised, quantised_.slots), DType::kI32};
  in.row_slots = {rows_.list.As<int32_t>() + at(c.batch * each.rows, rows_.slots), DType::kI32};
  in.logit_scale = 1 / std::sqrt(static_cast<float>(shape_.dim));
  return in;
}

RowCache CachePool::Contiguous(const DecodeCase& c, int64_t i) const {
  const int64_t tokens = c.batch * c.context;
  const int64_t copy = i % std::max<int64_t>(1, rows_.slots / tokens);
  const int64_t offset = copy * tokens * shape_.heads * shape_.dim;
  return {rows_.k.As<BFloat16>() + offset, rows_.v.As<BFloat16>() + offset, tokens};
}

}  // namespace oscar
