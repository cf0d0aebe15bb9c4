// The benchmark record (docs/formats/bench.md) as text.
#pragma once

#include <string>

#include "oscar/core/value.h"

namespace oscar {

// Tables for a terminal: per model memory per token, capacity, decode attention and decode steps.
// Throws Error(kFormat) when the record is not `oscar.bench/1`.
std::string BenchText(const Value& record);

}  // namespace oscar
