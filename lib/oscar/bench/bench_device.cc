#include "oscar/bench/bench_device.h"

#include <algorithm>

namespace oscar {

RequestLengths DecodeCase::Each() const {
  if (format == CacheFormat::kBFloat16) return {0, context};
  const int64_t rows = std::min(context, windows.sink + windows.recent);
  return {context - rows, rows};
}

int64_t DecodeCase::Bytes() const {
  return batch * RequestBytes(shape.cache, format, windows, context);
}

}  // namespace oscar
