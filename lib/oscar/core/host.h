// The machine that a program runs on, for the volatile parts of records.
#pragma once

#include <string>

namespace oscar {

// The processor's name as the operating system gives it; empty when it does not.
std::string ProcessorName();

}  // namespace oscar
