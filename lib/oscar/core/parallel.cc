#include "oscar/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace oscar {

void ParallelFor(int64_t count, int threads, const std::function<void(int64_t)>& body) {
  const int64_t workers = std::clamp<int64_t>(threads, 1, std::max<int64_t>(count, 1));
  if (workers == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<std::exception_ptr> errors(static_cast<size_t>(workers));
  const auto work = [&](size_t worker) {
    try {
      for (int64_t i = next++; i < count && !failed; i = next++) body(i);
    } catch (...) {
      errors[worker] = std::current_exception();
      failed = true;
    }
  };
  std::vector<std::thread> pool;
  for (int64_t w = 1; w < workers; ++w) pool.emplace_back(work, static_cast<size_t>(w));
  work(0);
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace oscar
