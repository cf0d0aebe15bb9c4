#include "oscar/core/error.h"

#include <fmt/format.h>

namespace oscar {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kFormat:
      return "format";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kMemory:
      return "memory";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

void FailCheck(const char* expression, const char* file, int line) {
  throw CheckFailure(fmt::format("internal check failed: {} ({}:{})", expression, file, line));
}

}  // namespace oscar
