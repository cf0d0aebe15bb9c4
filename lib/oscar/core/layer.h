// The shape of one attention layer, and the interfaces through which its rows flow.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "oscar/core/view.h"

namespace oscar {

// H_q query heads, H_kv key-value heads, head dims D_k and D_v. Query head h reads KV head
// h / (q_heads / kv_heads).
struct LayerShape {
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  int64_t hidden = 0;         // width of the residual stream; 0 when unknown (imported dumps)
  double softmax_scale = 0;   // logits are q.k * softmax_scale
  int64_t window = 0;         // sliding window in tokens, 0 for none: query i sees j > i - window
  std::string rope = "none";  // "full", "partial(n)", "none" or "unknown"

  int64_t group() const { return q_heads / kv_heads; }
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

// Channels whose 2-bit codes share a byte of the public cache. Rows of a head dim that is no
// multiple of it cannot be stored there.
inline constexpr int64_t kChannelsPerByte = 4;

// Replaces keys and values by what a cache would return. Used by the model runner to measure the
// end-to-end loss of a scheme; implemented by the verifier.
class KvTap {
 public:
  virtual ~KvTap() = default;
  // A block of consecutive tokens of one sequence of layer `layer`, whole sequences at a time.
  // positions [tokens]; k [tokens, H_kv, D_k], v [tokens, H_kv, D_v] after QK-norm and RoPE;
  // k_hat, v_hat of the same shapes receive the reconstruction in the original coordinates.
  // Which rows are used for which query is the runner's affair (windows). Thread-safe per call.
  virtual void Apply(int layer, std::span<const int64_t> positions, HeadRows<const float> k,
                     HeadRows<const float> v, HeadRows<float> k_hat, HeadRows<float> v_hat) = 0;
  // True when the cache does not give back the model's own rows in its exact windows either: an
  // engine keeps them rotated and rounded. ApplyWindows, called as Apply is, then gives them.
  virtual bool ChangesWindows(int /*layer*/) const { return false; }
  virtual void ApplyWindows(int /*layer*/, HeadRows<const float> /*k*/, HeadRows<const float> /*v*/,
                            HeadRows<float> /*k_window*/, HeadRows<float> /*v_window*/) {}
};

// The mixed-precision windows of a cache: at query i, key j is quantised if and only if
// sink <= j <= i - recent, so the `recent` newest keys (the query's own included) and the first
// `sink` stay exact.
//
// With flush > 1 tokens leave the recent window `flush` at a time, as in the ring of the public
// engine (method.md 7.4, flush 8: between 256 and 263 recent tokens are exact). A flush happens at
// the query at which `flush` tokens beyond sink + recent have gathered, so that
// recent + (i + 1 - sink - recent) mod flush keys stay exact. This is the phase of a prompt that
// is no longer than sink + recent tokens or longer by a multiple of flush; every token counts as
// decoded one by one.
struct Windows {
  int64_t sink = 64;
  int64_t recent = 256;
  int64_t flush = 1;

  // The first key that stays exact at `query` because it is recent; may lie before the sink's end.
  // Never moves back from one query to the next.
  int64_t RecentBegin(int64_t query) const {
    const int64_t beyond = query + 1 - sink - recent;
    return query + 1 - recent - (beyond > 0 ? beyond % flush : 0);
  }
  bool Quantised(int64_t query, int64_t key) const {
    return key >= sink && key < RecentBegin(query);
  }
  // Shortest sequence in which some position is quantised.
  int64_t ShortestUseful() const { return sink + recent + flush; }
  friend bool operator==(const Windows&, const Windows&) = default;
};

}  // namespace oscar
