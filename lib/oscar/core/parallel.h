// Data-parallel loops with a fixed partition, so that results do not depend on timing.
#pragma once

#include <cstdint>
#include <functional>

namespace oscar {

// Calls body(i) for every i in [0, count) on up to `threads` threads (the caller's included).
// Indices are handed out one by one, so bodies must be independent of one another; a reduction
// writes to slot i and is summed by the caller in index order. The exception of the lowest index
// that throws is rethrown after all threads have stopped: the same one on any number of threads.
void ParallelFor(int64_t count, int threads, const std::function<void(int64_t)>& body);

}  // namespace oscar
