// What a JSON parser that builds a tree does not tell: how deeply the text is nested, keys that
// come twice in one object, of which readers differ in the one they take, and in a sentence where
// and why a text is no JSON. In linear time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace oscar {

struct JsonScan {
  bool too_deep = false;  // something is inside more than `deepest` objects and lists
  // The first key that comes twice in one object, in any and in the outermost one.
  std::optional<std::string> repeated, repeated_at_top;
  // Where the text is no JSON: "line 2, column 5: expected ']', found end of input". The column is
  // that of the last byte read, from 1. Nothing when something is nested too deeply.
  std::optional<std::string> fault;
};

// Stops where the text is nested too deeply or is no JSON.
JsonScan ScanJson(std::string_view text, int deepest);

}  // namespace oscar
