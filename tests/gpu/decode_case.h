// Random caches for decode attention, on the host and mirrored on the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/random.h"
#include "oscar/cuda/decode.h"
#include "oscar/cuda/device.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/twin.h"

namespace oscar::test {

// How the slots of a request lie in the pool.
enum class Pages { kShuffledPages, kSequential, kShuffledSlots };

struct DecodeCase {
  DecodeShape shape;
  std::vector<RequestLengths> lengths;
  int64_t quantised_pool = 0, row_pool = 0;  // slots
  std::vector<uint8_t> k_codes, v_codes;
  std::vector<float> k_scales, v_scales;  // [slots, heads, 2 groups], before storage rounding
  std::vector<uint8_t> k_scale_bytes, v_scale_bytes;
  std::vector<BFloat16> k_rows, v_rows, q, v_rotation;
  std::vector<int64_t> quantised_slots, row_slots;
  std::vector<int32_t> quantised_slots32, row_slots32;
  bool wide_slots = false;
  bool rotation_per_head = false;
  float logit_scale = 0;

  DecodeCase(const DecodeShape& s, std::vector<RequestLengths> l, uint64_t seed,
             Pages pages = Pages::kShuffledPages, double q_sd = 1)
      : shape(s), lengths(std::move(l)) {
    Random random(seed);
    int64_t quantised = 0, rows = 0;
    for (const RequestLengths& r : lengths) {
      quantised += r.quantised;
      rows += r.rows;
    }
    quantised_pool = (quantised + 7 * static_cast<int64_t>(lengths.size())) / 8 * 8 + 16;
    row_pool = rows + 9;
    quantised_slots = Slots(random, quantised_pool, pages, &RequestLengths::quantised);
    row_slots = Slots(random, row_pool, Pages::kShuffledSlots, &RequestLengths::rows);
    const CacheShape& c = shape.cache;
    const int64_t n = quantised_pool * c.heads;
    k_codes = RandomBytes(random, n * c.CodeBytes());
    v_codes = RandomBytes(random, n * c.CodeBytes());
    k_scales = RandomScales(random, n * c.groups, 0.3);
    v_scales = RandomScales(random, n * c.groups, 0.5);
    k_rows = RandomRows(random, row_pool * c.heads * c.dim, 0.7);
    v_rows = RandomRows(random, row_pool * c.heads * c.dim, 0.7);
    q = RandomRows(random, static_cast<int64_t>(lengths.size()) * shape.q_heads * c.dim, q_sd);
    logit_scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
    StoreScales();
  }

  // Call after a change of the scales.
  void StoreScales() {
    k_scale_bytes = Stored(k_scales);
    v_scale_bytes = Stored(v_scales);
  }
  // Scale and zero of (slot, head, group).
  float* Scale(bool value, int64_t slot, int64_t head, int64_t group = 0) {
    return (value ? v_scales : k_scales).data() +
           ((slot * shape.cache.heads + head) * shape.cache.groups + group) * 2;
  }
  uint8_t* Codes(bool value, int64_t slot, int64_t head) {
    return (value ? v_codes : k_codes).data() +
           (slot * shape.cache.heads + head) * shape.cache.CodeBytes();
  }
  int64_t outputs() const {
    return static_cast<int64_t>(lengths.size()) * shape.q_heads * shape.cache.dim;
  }
  int64_t rows() const { return static_cast<int64_t>(lengths.size()) * shape.q_heads; }

  DecodeInputs HostInputs() {
    NarrowSlots();
    DecodeInputs in;
    in.q = q.data();
    in.quantised = {k_codes.data(), v_codes.data(), k_scale_bytes.data(), v_scale_bytes.data(),
                    quantised_pool};
    in.rows = {k_rows.data(), v_rows.data(), row_pool};
    in.quantised_slots = List(quantised_slots, quantised_slots32);
    in.row_slots = List(row_slots, row_slots32);
    in.logit_scale = logit_scale;
    in.v_rotation = v_rotation.empty() ? nullptr : v_rotation.data();
    in.v_rotation_per_head = rotation_per_head;
    return in;
  }

 private:
  SlotList List(const std::vector<int64_t>& wide, const std::vector<int32_t>& narrow) const {
    return wide_slots ? SlotList{wide.data(), DType::kI64} : SlotList{narrow.data(), DType::kI32};
  }
  void NarrowSlots() {
    quantised_slots32.assign(quantised_slots.begin(), quantised_slots.end());
    row_slots32.assign(row_slots.begin(), row_slots.end());
  }
  std::vector<int64_t> Slots(Random& random, int64_t pool, Pages pages,
                             int64_t RequestLengths::*member) const {
    std::vector<int64_t> order(static_cast<size_t>(pool));
    std::iota(order.begin(), order.end(), int64_t{0});
    if (pages == Pages::kShuffledSlots) Shuffle(random, order);
    if (pages == Pages::kShuffledPages) {
      std::vector<int64_t> page(static_cast<size_t>(pool / 8));
      std::iota(page.begin(), page.end(), int64_t{0});
      Shuffle(random, page);
      for (size_t i = 0; i < page.size() * 8; ++i) {
        order[i] = page[i / 8] * 8 + static_cast<int64_t>(i % 8);
      }
    }
    std::vector<int64_t> slots;
    size_t next = 0;
    for (const RequestLengths& request : lengths) {
      for (int64_t i = 0; i < request.*member; ++i) slots.push_back(order[next++]);
      // The next request begins on a page of its own.
      if (pages == Pages::kShuffledPages) next = (next + 7) / 8 * 8;
    }
    return slots;
  }
  static void Shuffle(Random& random, std::vector<int64_t>& x) {
    for (size_t i = x.size(); i > 1; --i) std::swap(x[i - 1], x[random.Below(i)]);
  }
  static std::vector<uint8_t> RandomBytes(Random& random, int64_t count) {
    std::vector<uint8_t> x(static_cast<size_t>(count));
    size_t i = 0;
    for (; i + 8 <= x.size(); i += 8) {
      const uint64_t bits = random.Next();
      std::memcpy(x.data() + i, &bits, 8);
    }
    for (; i < x.size(); ++i) x[i] = static_cast<uint8_t>(random.Next());
    return x;
  }
  static std::vector<float> RandomScales(Random& random, int64_t count, double scale) {
    std::vector<float> x;
    x.reserve(static_cast<size_t>(2 * count));
    for (int64_t i = 0; i < count; ++i) {
      x.push_back(static_cast<float>(scale * (0.5 + random.Uniform())));
      x.push_back(static_cast<float>(1 + random.Uniform()));
    }
    return x;
  }
  static std::vector<BFloat16> RandomRows(Random& random, int64_t count, double sd) {
    std::vector<BFloat16> x;
    x.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      x.push_back(ToBFloat16(static_cast<float>(sd * random.Normal())));
    }
    return x;
  }
  std::vector<uint8_t> Stored(const std::vector<float>& x) const {
    const DType type = shape.cache.scale_type;
    std::vector<uint8_t> bytes(x.size() * DTypeSize(type));
    for (size_t i = 0; i < x.size(); ++i) {
      if (type == DType::kF32) {
        std::memcpy(bytes.data() + 4 * i, &x[i], 4);
      } else {
        const uint16_t bits = type == DType::kF16 ? ToFloat16(x[i]).bits : ToBFloat16(x[i]).bits;
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    return bytes;
  }
};

struct DecodeResult {
  std::vector<float> o, lse;
};

inline DecodeResult Reference(DecodeCase& c) {
  DecodeResult result;
  result.o.resize(static_cast<size_t>(c.outputs()));
  result.lse.resize(static_cast<size_t>(c.rows()));
  DecodeReference(c.shape, c.lengths, c.HostInputs(),
                  {result.o.data(), DType::kF32, result.lse.data()});
  return result;
}

// Relative Frobenius distance of the outputs and the largest distance of finite log-sum-exps beyond
// four float32 steps of their size (scores of hundreds are not known better); infinite where one is
// NaN or only one is infinite.
struct Distance {
  double output = 0, lse = 0;
};

inline Distance Compare(const DecodeResult& x, const DecodeResult& reference) {
  double difference = 0, norm = 0;
  Distance distance;
  for (size_t i = 0; i < x.o.size(); ++i) {
    const double d = static_cast<double>(x.o[i]) - static_cast<double>(reference.o[i]);
    difference += d * d;
    norm += static_cast<double>(reference.o[i]) * static_cast<double>(reference.o[i]);
  }
  distance.output = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  if (std::isnan(distance.output)) distance.output = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < x.lse.size(); ++i) {
    if (x.lse[i] == reference.lse[i]) continue;
    const auto expected = static_cast<double>(reference.lse[i]);
    const double d =
        std::abs(static_cast<double>(x.lse[i]) - expected) - 0x1p-21 * std::abs(expected);
    distance.lse =
        std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(distance.lse, d);
  }
  return distance;
}

}  // namespace oscar::test
