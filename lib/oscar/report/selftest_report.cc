#include "oscar/report/selftest_report.h"

#include <algorithm>

#include "oscar/report/table.h"

namespace oscar {

Value SelfTestRecord(const Value& results) {
  const Value::Array& tests = results.AsArray();
  const bool passed = !tests.empty() && std::ranges::all_of(tests, [](const Value& test) {
    return test.At("passed").AsBool();
  });
  return Value::Object{
      {"schema", "oscar.selftest/1"}, {"tests", results}, {"verdict", passed ? "pass" : "fail"}};
}

std::string SelfTestText(const Value& record) {
  TextTable table({"metric", "expected", "found", "tolerance", "result"});
  for (const Value& test : record.At("tests").AsArray()) {
    const auto number = [&](const char* key) {
      const Value& value = test.At(key);
      return value.is_number() ? ShortNumber(value.AsDouble()) : std::string("-");
    };
    table.Row({test.At("metric").AsString() + ": " + test.At("injection").AsString(),
               number("expected"), number("found"), number("tolerance"),
               test.At("passed").AsBool() ? "pass" : "FAIL"});
  }
  return table.ToString("  ") + "\nverdict: " + record.At("verdict").AsString() + "\n";
}

}  // namespace oscar
