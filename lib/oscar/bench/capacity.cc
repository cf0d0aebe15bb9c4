#include "oscar/bench/capacity.h"

#include <algorithm>

namespace oscar {

int64_t RequestBytes(const CacheShape& shape, CacheFormat format, const Windows& windows,
                     int64_t tokens) {
  if (format == CacheFormat::kBFloat16) return tokens * shape.RowTokenBytes();
  const int64_t rows = std::min(tokens, windows.sink + windows.recent);
  return rows * shape.RowTokenBytes() + (tokens - rows) * shape.QuantisedTokenBytes();
}

int64_t RequestsThatFit(const ModelShape& model, const CacheShape& shape, CacheFormat format,
                        const Windows& windows, int64_t tokens, const MemoryBudget& budget) {
  const auto usable =
      static_cast<int64_t>(static_cast<double>(budget.device_bytes) * budget.fraction);
  const int64_t left = usable - 2 * model.Parameters();
  const int64_t each = model.layers * RequestBytes(shape, format, windows, tokens);
  return left <= 0 ? 0 : left / each;
}

int64_t StepBytes(const ModelShape& model, const CacheShape& shape, CacheFormat format,
                  const Windows& windows, int64_t tokens, int64_t batch) {
  const int64_t table = model.tied_embeddings ? 0 : model.hidden * model.vocabulary;
  return 2 * (model.Parameters() - table) +
         batch * model.layers * RequestBytes(shape, format, windows, tokens);
}

}  // namespace oscar
