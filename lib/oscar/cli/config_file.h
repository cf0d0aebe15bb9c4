// Reader and writer of configuration files; docs/formats/config.md describes them. Shared by this
// module's sources only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::cli {

// One `key = value` of a configuration file.
struct ConfigItem {
  std::string key;
  std::vector<std::string> values;  // text of each value, quotes and escapes resolved
  bool is_list = false;             // written in brackets
  int64_t line = 0;                 // the key's line, from 1
};

// Items in the order of the text; the same key may come back twice. `name` stands in messages.
// Throws Error(kUsage) with name and line for text that is not of the documented form.
std::vector<ConfigItem> ParseConfig(std::string_view text, const std::string& name);

// `text` as a quoted value that ParseConfig reads back as the same bytes.
std::string QuotedConfigText(std::string_view text);

}  // namespace oscar::cli
