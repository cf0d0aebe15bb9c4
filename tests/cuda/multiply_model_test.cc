// What truncated sums of the tensor cores do to outputs over long pieces.
//
// A multiply-accumulate of m16n8k16 aligns its 16 products and the sum so far to the largest of
// their exponents (that of 2^-14 for subnormals, as codes are), drops what lies more than 24 bits
// below the leading bit, and rounds the result towards zero: every addition to a sum of codes,
// which are all positive, takes something off. The output is that sum less the zero points', which
// is small beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/random.h"
#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/plan.h"

namespace oscar {
namespace {

double Truncated(double x, int bit) { return std::ldexp(std::trunc(std::ldexp(x, -bit)), bit); }

// sum += weights[i] fields[i] 2^-24, fields being the integers of subnormals.
void Accumulate(const double* weights, const double* fields, double& sum) {
  constexpr int kProducts = 16;
  int largest = -1000;
  const auto look = [&](double x) {
    int exponent;
    std::frexp(x, &exponent);
    if (x != 0) largest = std::max(largest, exponent);
  };
  for (int i = 0; i < kProducts; ++i) {
    if (fields[i] != 0) look(weights[i] * 0x1p-14);
  }
  look(sum);
  const int bit = largest - 25;
  double total = Truncated(sum, bit);
  for (int i = 0; i < kProducts; ++i) total += Truncated(weights[i] * fields[i] * 0x1p-24, bit);
  int exponent;
  std::frexp(total, &exponent);
  sum = Truncated(total, std::max(bit, exponent - 24));
}

// Field 3 of odd bytes is added up with the byte's other fields, which are taken off at the end.
bool IsWhole(int byte) { return byte % 2 == 1; }

// The relative error of the mean of `tokens` rows of normal numbers, all with one score, quantised
// row by row, as a warp adds them up in one piece, centred every `centre_tokens` tokens.
double ErrorOfEqualScores(int64_t tokens, int64_t centre_tokens) {
  constexpr int kChannels = 128;
  Random random(static_cast<uint64_t>(tokens));
  const auto count = static_cast<size_t>(tokens);
  std::vector<double> weights(count), scales(count), zeros(count);
  std::vector<double> codes(count * kChannels);
  for (size_t t = 0; t < count; ++t) {
    double row[kChannels], low = 1e9, high = -1e9;
    for (double& x : row) {
      x = random.Normal();
      low = std::min(low, x);
      high = std::max(high, x);
    }
    scales[t] = static_cast<float>((high - low) / 3);
    zeros[t] = static_cast<float>(-low / scales[t]);
    for (int c = 0; c < kChannels; ++c) {
      codes[t * kChannels + static_cast<size_t>(c)] =
          std::clamp(std::nearbyint(row[c] / scales[t] + zeros[t]), 0.0, 3.0);
    }
  }
  // Weights fill half precision as QuantisedWarp::Rescale has them do.
  const double boost =
      0x1p10 / std::exp2(std::ceil(std::log2(2 * *std::max_element(scales.begin(), scales.end()))));
  double zero_sum = 0;
  for (size_t t = 0; t < count; ++t) {
    weights[t] = ToFloat(ToFloat16(static_cast<float>(scales[t] * boost)));
    zero_sum += scales[t] * boost * zeros[t];
  }
  constexpr int kBytes = kChannels / 4;
  double sums[kBytes][4] = {}, exact[kBytes][4] = {};
  for (size_t t = 0; t < count; t += 16) {
    for (int byte = 0; byte < kBytes; ++byte) {
      double fields[4][16] = {};
      for (size_t i = 0; i < 16; ++i) {
        for (int f = 0; f < 4; ++f) {
          const double code = codes[(t + i) * kChannels + static_cast<size_t>(byte + f * kBytes)];
          exact[byte][f] += scales[t + i] * (code - zeros[t + i]);
          fields[f][i] += std::ldexp(code, 2 * f);
          if (IsWhole(byte) && f < 3) fields[3][i] += std::ldexp(code, 2 * f);
        }
      }
      for (int f = 0; f < 4; ++f) Accumulate(&weights[t], fields[f], sums[byte][f]);
    }
    if ((t + 16) % static_cast<size_t>(centre_tokens) == 0) {
      const double part = sums[0][0];
      zero_sum -= std::ldexp(part, 24);
      for (int byte = 0; byte < kBytes; ++byte) {
        for (int f = 0; f < 4; ++f) {
          const double taken = f == 3 && IsWhole(byte) ? 85 * part : std::ldexp(part, 2 * f);
          sums[byte][f] = static_cast<float>(sums[byte][f] - taken);
        }
      }
    }
  }
  double error = 0, norm = 0;
  for (int byte = 0; byte < kBytes; ++byte) {
    if (IsWhole(byte)) sums[byte][3] -= sums[byte][0] + sums[byte][1] + sums[byte][2];
    for (int f = 0; f < 4; ++f) {
      const double o = (std::ldexp(sums[byte][f], 24 - 2 * f) - zero_sum) / boost;
      error += (o - exact[byte][f]) * (o - exact[byte][f]);
      norm += exact[byte][f] * exact[byte][f];
    }
  }
  return std::sqrt(error / norm);
}

TEST(MultiplyModel, LongestPiecesKeepThePromisedAccuracy) {
  const int64_t tokens = kMaxQuantisedTiles * kQuantisedWarpTokens;
  EXPECT_LE(ErrorOfEqualScores(tokens, kCentreTiles * kQuantisedWarpTokens), 1e-3);
  // Without the centring, half of them breaks it.
  EXPECT_GT(ErrorOfEqualScores(tokens / 2, tokens), 1e-3);
}

}  // namespace
}  // namespace oscar
