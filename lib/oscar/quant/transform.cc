#include "oscar/quant/transform.h"

#include <algorithm>
#include <string>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/hadamard.h"
#include "oscar/core/parallel.h"
#include "oscar/quant/matmul.h"
#include "oscar/quant/quantiser.h"

namespace oscar {
namespace {

// Small enough to share the work evenly, large enough to reuse a packed rotation.
constexpr int64_t kTokensPerTask = 256;

int64_t BlocksOf(int64_t tokens) { return (tokens + kTokensPerTask - 1) / kTokensPerTask; }

// A block of tokens of one head.
struct Block {
  int64_t head, begin, end;
  Block(int64_t task, int64_t tokens)
      : head(task / BlocksOf(tokens)),
        begin(task % BlocksOf(tokens) * kTokensPerTask),
        end(std::min(tokens, begin + kTokensPerTask)) {}
};

void RotateBlock(const Transform& transform, bool round, HeadRows<const float> x,
                 const Block& block, float* rotated) {
  const int64_t count = block.end - block.begin;
  if (transform.identity()) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(x.At(block.begin + i, block.head), x.dim, rotated + i * x.dim);
    }
  } else {
    Multiply(count, x.dim, x.dim, {x.At(block.begin, block.head), x.heads * x.dim},
             {transform.ForHead(block.head).data(), x.dim}, {rotated, x.dim});
    if (round) {
      for (int64_t i = 0; i < count * x.dim; ++i) rotated[i] = RoundToBFloat16(rotated[i]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (AllFinite(rotated + i * x.dim, x.dim)) continue;
    throw Error(ErrorCode::kNumeric, "row of token " + std::to_string(block.begin + i) +
                                         ", KV head " + std::to_string(block.head) +
                                         " is not finite or overflows when rotated");
  }
}

// x_hat = rows R^-1 for a block, R^-1 = R^T unless an inverse is given.
void RotateBack(const Transform& transform, const float* rows, const Block& block,
                HeadRows<float> x_hat) {
  const int64_t count = block.end - block.begin;
  const int64_t dim = x_hat.dim;
  if (transform.identity()) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows + i * dim, dim, x_hat.At(block.begin + i, block.head));
    }
    return;
  }
  const Strided<float> out{x_hat.At(block.begin, block.head), x_hat.heads * dim};
  if (transform.inverses.empty()) {
    MultiplyTransposed(count, dim, dim, {rows, dim}, {transform.ForHead(block.head).data(), dim},
                       out);
    return;
  }
  const auto index = transform.inverses.size() == 1 ? 0 : static_cast<size_t>(block.head);
  Multiply(count, dim, dim, {rows, dim}, {transform.inverses[index].data(), dim}, out);
}

}  // namespace

Transform HadamardTransform(int64_t dim) {
  const std::vector<double> h = HadamardMatrix(dim);
  Transform transform;
  transform.dim = dim;
  transform.matrices.emplace_back(h.begin(), h.end());
  return transform;
}

Transform RotationTransform(const std::vector<float>& rotation, int64_t heads, int64_t dim) {
  const int64_t count = std::max<int64_t>(heads, 1);
  if (static_cast<int64_t>(rotation.size()) != count * dim * dim) {
    throw Error(ErrorCode::kFormat, "rotation holds " + std::to_string(rotation.size()) +
                                        " numbers, expected " + std::to_string(count) + " x " +
                                        std::to_string(dim) + " x " + std::to_string(dim));
  }
  Transform transform;
  transform.dim = dim;
  for (int64_t head = 0; head < count; ++head) {
    const auto first = rotation.begin() + head * dim * dim;
    transform.matrices.emplace_back(first, first + dim * dim);
  }
  return transform;
}

Transform RoundedToBFloat16(Transform transform) {
  for (std::vector<std::vector<float>>* const set : {&transform.matrices, &transform.inverses}) {
    for (std::vector<float>& matrix : *set) {
      for (float& value : matrix) value = RoundToBFloat16(value);
    }
  }
  return transform;
}

void CheckFits(const Transform& transform, int64_t heads, int64_t dim) {
  if (transform.identity()) return;
  const auto matches = [&](const std::vector<std::vector<float>>& set) {
    return std::ranges::all_of(
        set, [&](const auto& matrix) { return static_cast<int64_t>(matrix.size()) == dim * dim; });
  };
  if (transform.dim != dim || !matches(transform.matrices) || !matches(transform.inverses)) {
    throw Error(ErrorCode::kMismatch, "rotation is for head dim " + std::to_string(transform.dim) +
                                          ", rows have " + std::to_string(dim));
  }
  for (const size_t count : {transform.matrices.size(), transform.inverses.size()}) {
    if (count > 1 && count != static_cast<size_t>(heads)) {
      throw Error(ErrorCode::kMismatch, "rotation is for " + std::to_string(count) +
                                            " KV heads, rows have " + std::to_string(heads));
    }
  }
}

RotatedRows::RotatedRows(const Transform& transform, bool as_served, HeadRows<const float> x,
                         int threads)
    : transform_(as_served ? RoundedToBFloat16(transform) : transform),
      tokens_(x.tokens),
      heads_(x.heads),
      dim_(x.dim),
      rows_(static_cast<size_t>(x.size())) {
  CheckFits(transform_, heads_, dim_);
  ParallelFor(heads_ * BlocksOf(tokens_), threads, [&](int64_t task) {
    const Block block(task, tokens_);
    RotateBlock(transform_, as_served, x, block,
                rows_.data() + (block.head * tokens_ + block.begin) * dim_);
  });
}

void RotatedRows::Reconstruct(const QuantiserSpec& quantiser, HeadRows<float> x_hat,
                              int threads) const {
  OSCAR_CHECK(x_hat.tokens == tokens_ && x_hat.heads == heads_ && x_hat.dim == dim_);
  quantiser.Validate(dim_);
  ParallelFor(heads_ * BlocksOf(tokens_), threads, [&](int64_t task) {
    const Block block(task, tokens_);
    const float* const rows = Row(block.begin, block.head);
    if (quantiser.bits == 16) {
      RotateBack(transform_, rows, block, x_hat);
      return;
    }
    std::vector<float> work(rows, rows + (block.end - block.begin) * dim_);
    RowQuantiser row_quantiser(quantiser, dim_);
    for (int64_t i = 0; i < block.end - block.begin; ++i) {
      row_quantiser.Reconstruct(work.data() + i * dim_);
    }
    RotateBack(transform_, work.data(), block, x_hat);
  });
}

bool WindowsAreInexact(const SideScheme& side) {
  return side.as_served && !side.transform.identity();
}

void Reconstruct(const SideScheme& side, HeadRows<const float> x, HeadRows<float> x_hat,
                 int threads) {
  RotatedRows(side.transform, side.as_served, x, threads)
      .Reconstruct(side.quantiser, x_hat, threads);
}

void ReconstructWindows(const SideScheme& side, HeadRows<const float> x, HeadRows<float> x_hat,
                        int threads) {
  if (!WindowsAreInexact(side)) {
    if (x_hat.data != x.data) std::copy_n(x.data, x.size(), x_hat.data);
    return;
  }
  QuantiserSpec exact;
  exact.bits = 16;
  RotatedRows(side.transform, true, x, threads).Reconstruct(exact, x_hat, threads);
}

}  // namespace oscar
