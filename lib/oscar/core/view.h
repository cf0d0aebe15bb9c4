// Non-owning views with named shapes. Row-major and contiguous everywhere.
#pragma once

#include <cstdint>
#include <type_traits>

namespace oscar {

// [rows, cols], row-major, contiguous.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;

  T* Row(int64_t i) const { return data + i * cols; }
  T& operator()(int64_t i, int64_t j) const { return data[i * cols + j]; }
  int64_t size() const { return rows * cols; }
  operator MatrixView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, rows, cols};
  }
};

// [tokens, heads, dim], contiguous: the layout of captured queries, keys, values and outputs.
template <typename T>
struct HeadRows {
  T* data = nullptr;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;

  T* At(int64_t token, int64_t head) const { return data + (token * heads + head) * dim; }
  int64_t size() const { return tokens * heads * dim; }
  HeadRows Slice(int64_t begin, int64_t end) const {
    return {data + begin * heads * dim, end - begin, heads, dim};
  }
  operator HeadRows<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, tokens, heads, dim};
  }
};

}  // namespace oscar
