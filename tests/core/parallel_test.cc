#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"

namespace oscar {
namespace {

TEST(Parallel, CallsEveryIndexOnceAndPassesExceptionsOn) {
  std::vector<int> seen(1000);
  ParallelFor(1000, 4, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  EXPECT_THAT(seen, testing::Each(1));
  EXPECT_THROW(ParallelFor(10, 2,
                           [](int64_t i) {
                             if (i == 7) throw Error(ErrorCode::kData, "seven");
                           }),
               Error);
  ParallelFor(0, 4, [](int64_t) { FAIL(); });
}

// Also where a later one fails first, on whatever thread.
TEST(Parallel, TheLowestIndexThatFailsIsNamed) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> second_began{false}, third_failed{false};
    const auto body = [&](int64_t i) {
      if (i == 0) {
        while (!second_began) std::this_thread::yield();
      } else if (i == 1) {
        second_began = true;
        while (!third_failed) std::this_thread::yield();
        throw std::runtime_error("1");
      } else {
        third_failed = true;
        throw std::runtime_error("2");
      }
    };
    try {
      ParallelFor(3, 2, body);
      FAIL();
    } catch (const std::runtime_error& error) {
      ASSERT_STREQ(error.what(), "1") << round;
    }
  }
}

}  // namespace
}  // namespace oscar
