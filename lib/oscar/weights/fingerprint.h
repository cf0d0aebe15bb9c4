// Names the weights of a model without hashing all of them.
#pragma once

#include <string>

#include "oscar/weights/model_weights.h"

namespace oscar {

// SHA-256 of the final norm and of embedding rows spread over the vocabulary, as float32: tells a
// model from a fine-tune of the same configuration at the cost of a few rows.
std::string WeightsFingerprint(const ModelWeights& model);

}  // namespace oscar
