#include "oscar/weights/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "oscar/core/error.h"

namespace oscar {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

float F(double x) { return static_cast<float>(x); }

// theta^(2i/dim), [dim / 2]; the exponent and the power are rounded to float32.
std::vector<float> Powers(double theta, int64_t dim) {
  std::vector<float> out;
  for (int64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    out.push_back(F(std::pow(static_cast<double>(F(theta)), static_cast<double>(exponent))));
  }
  return out;
}

// One frequency under llama3 scaling, float32 throughout.
float ScaleLlama3(const RopeParameters& p, float frequency) {
  const float wavelength = (1.0F / frequency) * F(kTwoPi);
  const float longest_kept = F(p.original_positions / p.high_freq_factor);
  const float longest_mixed = F(p.original_positions / p.low_freq_factor);
  if (wavelength > longest_mixed) return frequency / F(p.factor);
  if (wavelength < longest_kept) return frequency;
  const float turns = (1.0F / wavelength) * F(p.original_positions);
  const float smooth = (turns - F(p.low_freq_factor)) / F(p.high_freq_factor - p.low_freq_factor);
  return (1.0F - smooth) * frequency / F(p.factor) + smooth * frequency;
}

// The (fractional) dim whose frequency turns `rotations` times within the original context.
double CorrectionDim(const RopeParameters& p, double rotations, int64_t dim) {
  return static_cast<double>(dim) * std::log(p.original_positions / (rotations * kTwoPi)) /
         (2 * std::log(p.theta));
}

std::vector<float> YarnFrequencies(const RopeParameters& p, const std::vector<float>& powers,
                                   int64_t dim) {
  double low = CorrectionDim(p, p.beta_fast, dim);
  double high = CorrectionDim(p, p.beta_slow, dim);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> out;
  for (size_t i = 0; i < powers.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - F(low)) / F(high - low), 0.0F, 1.0F);
    const float extrapolation = 1.0F / powers[i];
    const float interpolation = 1.0F / (F(p.factor) * powers[i]);
    const float share = 1.0F - ramp;
    out.push_back(interpolation * (1.0F - share) + extrapolation * share);
  }
  return out;
}

double YarnMagnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeParameters& p) {
  if (p.attention_factor > 0) return p.attention_factor;
  if (p.mscale > 0 && p.mscale_all_dim > 0) {
    return YarnMagnitude(p.factor, p.mscale) / YarnMagnitude(p.factor, p.mscale_all_dim);
  }
  return YarnMagnitude(p.factor, 1);
}

}  // namespace

RopeSpec ComputeRope(const RopeParameters& parameters, int64_t dim) {
  OSCAR_CHECK(dim > 0 && dim % 2 == 0);
  const std::vector<float> powers = Powers(parameters.theta, dim);
  std::vector<float> frequencies;
  RopeSpec spec;
  if (parameters.type == "yarn") {
    frequencies = YarnFrequencies(parameters, powers, dim);
    spec.attention_factor = YarnAttentionFactor(parameters);
  } else {
    for (const float power : powers) {
      float frequency = 1.0F / power;
      if (parameters.type == "linear") frequency /= F(parameters.factor);
      if (parameters.type == "llama3") frequency = ScaleLlama3(parameters, frequency);
      frequencies.push_back(frequency);
    }
  }
  for (size_t i = 0; i < parameters.divisors.size(); ++i) frequencies[i] /= parameters.divisors[i];
  spec.inv_freq.assign(frequencies.begin(), frequencies.end());
  return spec;
}

}  // namespace oscar
