// Reproducible random numbers: the same seed gives the same stream on every platform.
#pragma once

#include <cstdint>
#include <string_view>

namespace oscar {

// xoshiro256** seeded through splitmix64. Not for cryptography.
class Random {
 public:
  explicit Random(uint64_t seed);

  uint64_t Next();
  // Uniform in [0, 1) with 53 random bits.
  double Uniform();
  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound);
  // Standard normal (Box-Muller).
  double Normal();

 private:
  uint64_t state_[4];
  double spare_ = 0;
  bool has_spare_ = false;
};

// A seed derived from a base seed and a name, so that independent uses do not share a stream.
uint64_t DeriveSeed(uint64_t base, std::string_view name);

}  // namespace oscar
