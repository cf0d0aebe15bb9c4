// A forward hook that keeps every row.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "oscar/model/observer.h"

namespace oscar::test {

struct KeptRows {
  std::vector<float> data;
  int64_t tokens = 0, heads = 0, dim = 0;
  KeptRows() = default;
  explicit KeptRows(HeadRows<const float> rows)
      : data(rows.data, rows.data + rows.size()),
        tokens(rows.tokens),
        heads(rows.heads),
        dim(rows.dim) {}
  HeadRows<const float> view() const { return {data.data(), tokens, heads, dim}; }
};

class RowKeeper final : public AttentionSink {
 public:
  struct Rows {
    KeptRows q, k, v, o;
  };
  void BeginLayer(int layer, const LayerShape& shape) override {
    shapes[layer] = shape;
    ++begun;
  }
  void OnSequence(const AttentionRows& x) override {
    rows[{x.layer, x.sequence}] = {KeptRows(x.q), KeptRows(x.k), KeptRows(x.v), KeptRows(x.o)};
  }
  void EndLayer(int) override { ++ended; }

  std::map<int, LayerShape> shapes;
  std::map<std::pair<int, int64_t>, Rows> rows;  // by layer and sequence
  int begun = 0, ended = 0;
};

}  // namespace oscar::test
