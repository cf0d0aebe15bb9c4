// What a JSON parser that builds a tree does not tell: how deeply the text is nested, and keys that
// come twice in one object, of which readers differ in the one they take. In linear time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace oscar {

struct JsonScan {
  bool too_deep = false;  // something is inside more than `deepest` objects and lists
  // The first key that comes twice in one object, in any and in the outermost one.
  std::optional<std::string> repeated, repeated_at_top;
};

// Stops where the text is nested too deeply or is no JSON, which is left to the parser to say.
JsonScan ScanJson(std::string_view text, int deepest);

}  // namespace oscar
