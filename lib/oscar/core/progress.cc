#include "oscar/core/progress.h"

#include "oscar/core/error.h"

namespace oscar {

void CancelToken::ThrowIfCancelled(const std::string& what_is_left) const {
  if (cancelled()) throw Error(ErrorCode::kInterrupted, "interrupted", what_is_left);
}

}  // namespace oscar
