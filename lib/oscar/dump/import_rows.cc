#include "oscar/dump/import_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "oscar/core/error.h"

namespace oscar {
namespace {

// Copies the first `tokens` rows to [tokens, heads, dim], each element through `convert`.
template <typename T, typename Convert>
std::vector<BFloat16> Gather(const TorchTensor& tensor, const RowsLayout& layout, int64_t tokens,
                             const Convert& convert) {
  std::vector<BFloat16> out;
  out.reserve(static_cast<size_t>(tokens * layout.heads * layout.dim));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < layout.heads; ++h) {
      const int64_t row = layout.offset + t * layout.token + h * layout.head;
      for (int64_t d = 0; d < layout.dim; ++d) {
        T element;
        std::memcpy(&element,
                    tensor.storage + static_cast<size_t>(row + d * layout.dim_stride) * sizeof(T),
                    sizeof(T));
        out.push_back(convert(element));
      }
    }
  }
  return out;
}

// All exponent bits set: infinity or NaN.
bool IsFinite(BFloat16 x) { return (x.bits & 0x7f80U) != 0x7f80U; }

// First value that is not finite, or `end`. Blocks without an early exit run at memory speed.
const BFloat16* FindNotFinite(const BFloat16* begin, const BFloat16* end) {
  constexpr std::ptrdiff_t kBlock = 4096;
  for (std::ptrdiff_t start = 0; start < end - begin; start += kBlock) {
    const BFloat16* block = begin + start;
    const std::ptrdiff_t size = std::min(kBlock, end - block);
    unsigned bad = 0;
    for (std::ptrdiff_t i = 0; i < size; ++i) bad |= IsFinite(block[i]) ? 0U : 1U;
    if (bad != 0) return std::find_if_not(block, block + size, IsFinite);
  }
  return end;
}

}  // namespace

ChunkRows::ChunkRows(const ImportSurvey& survey, int layer, const char* part, int64_t heads,
                     const ImportChunk& chunk) {
  const std::filesystem::path file = survey.File(layer, part, chunk.id);
  tensor_ = ReadDumpTensor(file);
  const RowsLayout layout = LayoutOf(tensor_, heads, file);
  const int64_t tokens = std::accumulate(chunk.seq_lens.begin(), chunk.seq_lens.end(), int64_t{0});
  OSCAR_CHECK(layout.tokens >= tokens);
  const auto round = [&](float x) {
    const BFloat16 y = ToBFloat16(x);
    rounded_ = rounded_ || ToFloat(y) != x;
    return y;
  };
  const uint8_t* first = tensor_.storage + static_cast<size_t>(layout.offset) * sizeof(BFloat16);
  const bool aligned = reinterpret_cast<uintptr_t>(first) % alignof(BFloat16) == 0;
  if (tensor_.dtype == DType::kBF16 && layout.contiguous() && aligned) {
    rows_.data = reinterpret_cast<const BFloat16*>(first);
  } else {
    if (tensor_.dtype == DType::kBF16) {
      copy_ = Gather<BFloat16>(tensor_, layout, tokens, [](BFloat16 x) { return x; });
    } else if (tensor_.dtype == DType::kF16) {
      copy_ =
          Gather<Float16>(tensor_, layout, tokens, [&](Float16 x) { return round(ToFloat(x)); });
    } else {
      copy_ = Gather<float>(tensor_, layout, tokens, round);
    }
    rows_.data = copy_.data();
  }
  rows_.tokens = tokens;
  rows_.heads = layout.heads;
  rows_.dim = layout.dim;
  const BFloat16* end = rows_.data + rows_.size();
  const BFloat16* bad = FindNotFinite(rows_.data, end);
  if (bad == end) return;
  const int64_t row = (bad - rows_.data) / (layout.heads * layout.dim);
  throw Error(ErrorCode::kNumeric,
              fmt::format("{}: layer {}, chunk {}: {} holds {} in row {}", file.string(), layer,
                          chunk.id, part, ToFloat(*bad), row),
              "the model overflowed or the dump is damaged: make the dump again");
}

}  // namespace oscar
