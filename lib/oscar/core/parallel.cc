#include "oscar/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
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
  // What has not begun from here on never does: behind the last index, then the lowest that failed.
  std::atomic<int64_t> end{count};
  std::mutex failing;
  std::exception_ptr error;
  const auto work = [&] {
    for (int64_t i = next++; i < end; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(failing);
        if (i >= end) continue;
        end = i;
        error = std::current_exception();
      }
    }
  };
  std::vector<std::thread> pool;
  for (int64_t w = 1; w < workers; ++w) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace oscar
