// Comparison of arrays relative to the largest entry of the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace oscar::test {

// Largest |actual - expected| and |expected| over pairs added one by one. Not a number counts as an
// infinite error.
class WorstError {
 public:
  void Add(double actual, double expected) {
    const double error = std::abs(actual - expected);
    if (!(error <= error_)) {
      error_ = std::isnan(error) ? INFINITY : error;
      index_ = count_;
    }
    largest_ = std::max(largest_, std::abs(expected));
    ++count_;
  }
  double absolute() const { return error_; }
  double relative() const { return error_ / largest_; }
  int64_t count() const { return count_; }
  std::string Where() const {
    return "error " + std::to_string(error_) + " at pair " + std::to_string(index_) + " of " +
           std::to_string(count_) + ", largest entry " + std::to_string(largest_);
  }

 private:
  double error_ = 0;
  double largest_ = 0;
  int64_t index_ = -1;
  int64_t count_ = 0;
};

}  // namespace oscar::test
