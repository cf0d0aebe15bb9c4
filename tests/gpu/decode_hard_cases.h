// Decode cases that upset a careless kernel, for the kernels and for their CPU twin.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpu/decode_case.h"

namespace oscar::test {

struct NamedDecodeCase {
  std::string name;
  DecodeCase c;
};

// The first request has `tokens` tokens of 2-bit history and a window, the second a third of that.
inline std::vector<NamedDecodeCase> HardDecodeCases(const DecodeShape& shape, int64_t tokens) {
  const std::vector<RequestLengths> lengths = {{tokens, 40}, {tokens / 3, 0}};
  const int64_t heads = shape.cache.heads;
  const auto count = static_cast<size_t>(tokens);
  std::vector<NamedDecodeCase> cases;
  const auto add = [&](const std::string& name, uint64_t seed, auto&& change, double q_sd = 1) {
    DecodeCase c(shape, lengths, seed, Pages::kShuffledPages, q_sd);
    change(c);
    c.StoreScales();
    cases.push_back({name, std::move(c)});
  };
  add("constant_rows", 1, [](DecodeCase& c) {  // scale 1e-8 / 3
    for (size_t i = 0; i < c.k_scales.size(); i += 6) {
      c.k_scales[i] = c.v_scales[i] = 1e-8F / 3;
      c.k_scales[i + 1] = -0.5F / c.k_scales[i];
      c.v_scales[i + 1] = 1.5F / c.v_scales[i];
    }
  });
  // Nearly constant rows: zeros beyond half precision count as its largest number, at scales that
  // are not zero.
  add("far_zeros", 12, [](DecodeCase& c) {
    for (size_t i = 0; i < c.k_scales.size(); i += 6) {
      c.k_scales[i] = c.v_scales[i] = 6e-5F;
      c.k_scales[i + 1] = (i % 4 == 0 ? 1 : -1) * 1.2e5F;
      c.v_scales[i + 1] = -1.2e5F;
    }
  });
  for (const float zero : {0.0F, 3.0F, -5.0F, 9.0F}) {
    add("zero_" + std::to_string(zero), 2, [zero](DecodeCase& c) {
      for (size_t i = 1; i < c.k_scales.size(); i += 2) c.k_scales[i] = c.v_scales[i] = zero;
    });
  }
  add(
      "large_queries", 3, [](DecodeCase&) {}, 100);  // scores of hundreds
  // One channel of every query is 127, in turn, the rest stand 2^8 and 2^12 below. Each multiply
  // drops what is 2^-19 of 64 and less, the largest power of two in 127, from 15 products and the
  // sum so far (kKeyFieldBits): with key scales of at most 0.45 and the logit scale of 64 channels
  // 16 2^-13 0.45 / 8 = 1.1e-4, of which a quarter is codes 0, which lose nothing. Half precision
  // holds the small channels exactly, with all 8 bits of bf16, down to 2^-27 of the largest.
  for (const int below : {8, 12}) {
    add("dominating_channel_" + std::to_string(1 << below), 10, [&](DecodeCase& c) {
      const auto dim = static_cast<size_t>(shape.cache.dim);
      for (size_t i = 0; i < c.q.size(); ++i) {
        const bool large = i % dim == i / dim * 37 % dim;
        c.q[i] = ToBFloat16(large ? 127.0F : 127 * std::ldexp(ToFloat(c.q[i]), -below));
      }
    });
  }
  for (const size_t at : {size_t{0}, count / 2, count - 1}) {
    add("dominant_" + std::to_string(at), 4, [&](DecodeCase& c) {
      for (int64_t h = 0; h < heads; ++h) c.Scale(false, c.quantised_slots[at], h)[0] = 8;
    });
  }
  add("rising", 5, [&](DecodeCase& c) {  // scores rise with every token
    for (size_t t = 0; t < count; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        c.Scale(false, c.quantised_slots[t], h)[0] = 4.0F * static_cast<float>(t) / 2000;
        c.Scale(false, c.quantised_slots[t], h)[1] = -20;
      }
    }
    for (BFloat16& x : c.q) x = ToBFloat16(std::abs(ToFloat(x)));
  });
  add("scale_jump", 6, [&](DecodeCase& c) {  // value scales of the last group jump half way
    for (size_t t = count / 2; t < count; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        c.Scale(true, c.quantised_slots[t], h, shape.cache.groups - 1)[0] *= 1000;
      }
    }
  });
  add("equal_scores", 7, [](DecodeCase& c) { std::fill(c.q.begin(), c.q.end(), BFloat16{0}); });
  add("shared_prefix", 8, [&](DecodeCase& c) {  // both requests begin with the same pages
    const auto shared = static_cast<std::ptrdiff_t>(tokens / 3 / 8 * 8);
    std::copy_n(c.quantised_slots.begin(), shared,
                c.quantised_slots.begin() + static_cast<std::ptrdiff_t>(tokens));
  });
  add("unlisted_slots_hold_nan", 9, [&](DecodeCase& c) {
    // What the lists do not name, the rest of the last page included, must not be used.
    std::vector<bool> named(static_cast<size_t>(c.quantised_pool)),
        row_named(static_cast<size_t>(c.row_pool));
    for (const int64_t slot : c.quantised_slots) named[static_cast<size_t>(slot)] = true;
    for (const int64_t slot : c.row_slots) row_named[static_cast<size_t>(slot)] = true;
    const CacheShape& s = c.shape.cache;
    for (int64_t slot = 0; slot < c.quantised_pool; ++slot) {
      if (named[static_cast<size_t>(slot)]) continue;
      for (int64_t i = 0; i < heads * s.groups * 2; ++i) {
        c.Scale(false, slot, 0)[i] = c.Scale(true, slot, 0)[i] =
            std::numeric_limits<float>::quiet_NaN();
      }
    }
    for (int64_t slot = 0; slot < c.row_pool; ++slot) {
      if (row_named[static_cast<size_t>(slot)]) continue;
      const auto from = static_cast<std::ptrdiff_t>(slot * heads * s.dim);
      std::fill_n(c.k_rows.begin() + from, heads * s.dim, BFloat16{0x7fc0});
      std::fill_n(c.v_rows.begin() + from, heads * s.dim, BFloat16{0x7fc0});
    }
  });
  return cases;
}

}  // namespace oscar::test
