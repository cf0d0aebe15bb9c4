// Rotary frequencies with the usual context extensions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/weights/model_weights.h"

namespace oscar {

// Everything the frequencies depend on. `type` is "default", "linear", "llama3" or "yarn"; the
// fields of the other types are ignored.
struct RopeParameters {
  std::string type = "default";
  double theta = 10000;
  double factor = 1;              // linear, llama3, yarn
  double original_positions = 0;  // llama3, yarn: context length before the extension
  double low_freq_factor = 1;     // llama3
  double high_freq_factor = 4;    // llama3
  double beta_fast = 32;          // yarn
  double beta_slow = 1;           // yarn
  double mscale = 0;              // yarn; 0: not given
  double mscale_all_dim = 0;      // yarn; 0: not given
  double attention_factor = 0;    // yarn; 0: derived from factor and the mscales
  bool truncate = true;           // yarn: round the correction range to whole dims
  std::vector<float> divisors;    // GGUF rope_freqs: each frequency is divided by its entry
};

// Frequencies for a head of `dim` (even) rotated dims:
//   default  f_i = theta^(-2i/dim)
//   linear   f_i / factor
//   llama3   wavelength w = 2 pi / f: f below original/high, f/factor above original/low, and
//            (1 - s) f/factor + s f with s = (original/w - low) / (high - low) between
//   yarn     (1 - e_i) f/factor + e_i f, e_i = 1 - clamp((i - lo) / (hi - lo), 0, 1), lo and hi the
//            dims that turn beta_fast and beta_slow times within the original context
// Every step is rounded to float32 in the order in which transformers computes it, so the doubles
// returned hold the float32 values that the reference implementation uses, up to one unit in the
// last place where its vectorised power function rounds differently.
RopeSpec ComputeRope(const RopeParameters& parameters, int64_t dim);

}  // namespace oscar
