// The self-tests of the metrics as a record and as text.
#pragma once

#include <string>

#include "oscar/core/value.h"

namespace oscar {

// `{schema: "oscar.selftest/1", tests: results, verdict}` from a list of
// {metric, injection, expected, found, tolerance, passed}; "fail" when a test failed or none ran.
Value SelfTestRecord(const Value& results);
std::string SelfTestText(const Value& record);

}  // namespace oscar
