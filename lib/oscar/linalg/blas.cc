#include "oscar/linalg/blas.h"

#include <cblas.h>

#include "oscar/core/error.h"

namespace oscar {

void SetBlasThreads(int threads) {
  OSCAR_CHECK(threads >= 1);
  openblas_set_num_threads(threads);
}

std::string BlasDescription() {
  std::string text = openblas_get_config();
  // The configuration string names the core type only in some builds; the call always does.
  const std::string core = openblas_get_corename();
  if (text.find(core) == std::string::npos) text += " " + core;
  return text;
}

}  // namespace oscar
