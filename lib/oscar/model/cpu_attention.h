// Softmax attention of one sequence on the CPU, for an exact cache and for one that is quantised
// outside its windows. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "oscar/core/key_range.h"
#include "oscar/core/layer.h"
#include "oscar/core/view.h"

namespace oscar {

// A cache that answers with k, v for the pairs (query i, key j) where windows.Quantised(i, j).
struct TappedCache {
  HeadRows<const float> k, v;
  Windows windows;
};

// o = softmax(scale q k^T) v for all heads of a sequence; query head h reads KV head h / (H_q /
// H_kv).
//
// The work is cut into tasks of a block of queries of one head, which keep running maxima and sums
// over blocks of keys, so that memory is linear in the number of tokens. Products, exponentials and
// sums are float32. Tasks are independent of one another and may run on any threads; the result
// does not depend on which.
class CpuAttention {
 public:
  // All views must outlive the object. o [T, H_q, D_v] is written by Run().
  CpuAttention(HeadRows<const float> q, HeadRows<const float> k, HeadRows<const float> v,
               double scale, int64_t window, const std::optional<TappedCache>& cache,
               HeadRows<float> o);

  // First all of Pack(0 .. pack_tasks() - 1), then all of Run(0 .. tasks() - 1), longest first.
  int64_t pack_tasks() const { return static_cast<int64_t>(sources_.size()) * k_.heads; }
  void Pack(int64_t task);

  struct Scratch {
    std::vector<float> queries, scores, outputs, maxima, sums;
  };
  int64_t tasks() const { return blocks_ * q_.heads; }
  void Run(int64_t task, Scratch& scratch) const;

 private:
  // Exact rows, or the cache's: each KV head packed for the kernels.
  struct Source {
    HeadRows<const float> k, v;
    std::vector<float> keys;    // [H_kv, panels, D_k, kPanel]
    std::vector<float> values;  // [H_kv, panels kPanel, padded D_v]
  };
  // A run of keys of one source and the part of it that a query sees.
  struct Segment {
    size_t source;
    KeyRange keys;
    enum Kind { kAll, kSink, kCached, kRecent } kind;
  };
  std::vector<Segment> SegmentsOf(int64_t begin, int64_t end) const;
  KeyRange VisiblePart(const Segment& segment, int64_t query) const;
  void AddKeys(const Segment& segment, int64_t kv_head, const KeyRange& queries, int64_t first_key,
               Scratch& scratch) const;

  HeadRows<const float> q_, k_;
  float scale_;
  int64_t window_;
  Windows windows_;
  HeadRows<float> o_;
  int64_t blocks_;    // blocks of queries
  int64_t panels_;    // panels of keys
  int64_t padded_v_;  // D_v in whole vectors
  std::vector<Source> sources_;
};

}  // namespace oscar
