#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "oscar/cli/options.h"
#include "oscar/core/error.h"
#include "oscar/core/files.h"

namespace oscar::cli {
namespace {

[[noreturn]] void BadValue(const OptionRow& row, const std::string& expected,
                           const std::string& found) {
  throw Error(ErrorCode::kUsage,
              fmt::format("--{}: expected {}, found '{}'", row.name, expected, found));
}

std::string RangeText(const OptionRow& row) {
  return std::isinf(row.high) ? fmt::format("at least {}", row.low)
                              : fmt::format("from {} to {}", row.low, row.high);
}

// Digits with an optional minus; 010 and 0x10 are refused because readers disagree about them.
int64_t ParseInt(const OptionRow& row, const std::string& text) {
  const std::string expected = fmt::format("a whole number {}", RangeText(row));
  const std::string digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.size() > 1 && digits[0] == '0') BadValue(row, expected, text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) BadValue(row, expected, text);
  if (static_cast<double>(value) < row.low || static_cast<double>(value) > row.high) {
    BadValue(row, expected, text);
  }
  return value;
}

double ParseReal(const OptionRow& row, const std::string& text) {
  const std::string expected = fmt::format("a number {}", RangeText(row));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool parsed = error == std::errc() && end == text.data() + text.size();
  if (!parsed || !std::isfinite(value) || value < row.low || value > row.high) {
    BadValue(row, expected, text);
  }
  return value;
}

bool ParseBool(const OptionRow& row, const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  BadValue(row, "true or false", text);
}

// Validates and stores the values given for one row.
void Assign(const OptionRow& row, const std::vector<std::string>& values) {
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&row.target)) {
    **list = values;
    return;
  }
  if (values.size() != 1) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--{}: expected one value, found {}", row.name, values.size()));
  }
  const std::string& text = values.front();
  if (auto* const* flag = std::get_if<bool*>(&row.target)) **flag = ParseBool(row, text);
  if (auto* const* number = std::get_if<int64_t*>(&row.target)) **number = ParseInt(row, text);
  if (auto* const* number = std::get_if<double*>(&row.target)) **number = ParseReal(row, text);
  if (auto* const* target = std::get_if<std::string*>(&row.target)) {
    if (!row.choices.empty() &&
        std::find(row.choices.begin(), row.choices.end(), text) == row.choices.end()) {
      BadValue(row, fmt::format("one of {}", fmt::join(row.choices, ", ")), text);
    }
    **target = text;
  }
}

std::string Quoted(const std::string& text) { return fmt::format("\"{}\"", text); }

std::string ConfigText(const OptionRow& row) {
  if (auto* const* x = std::get_if<bool*>(&row.target)) return **x ? "true" : "false";
  if (auto* const* x = std::get_if<int64_t*>(&row.target)) return fmt::format("{}", **x);
  if (auto* const* x = std::get_if<double*>(&row.target)) return fmt::format("{}", **x);
  if (auto* const* x = std::get_if<std::string*>(&row.target)) return Quoted(**x);
  const auto& list = *std::get<std::vector<std::string>*>(row.target);
  std::vector<std::string> quoted;
  for (const std::string& item : list) quoted.push_back(Quoted(item));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

using RawValues = std::map<std::string, std::vector<std::string>>;

RawValues ReadConfig(const OptionTable& table, const std::string& path) {
  RawValues values;
  std::vector<CLI::ConfigItem> items;
  try {
    std::istringstream text(ReadTextFile(path));
    items = CLI::ConfigTOML().from_config(text);
  } catch (const CLI::Error& e) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", path, e.what()));
  } catch (const Error& e) {
    throw Error(ErrorCode::kUsage, fmt::format("--config: {}", e.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section's borders
    const auto known = [&](const OptionRow& row) { return row.name == item.name; };
    if (!item.parents.empty() || std::none_of(table.rows().begin(), table.rows().end(), known)) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: unknown key '{}'", path, item.fullname()),
                  fmt::format("{} --help lists the options", table.program()));
    }
    if (!values.emplace(item.name, item.inputs).second) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: key '{}' stands twice", path, item.name));
    }
  }
  return values;
}

// Splits the command line with CLI11; values stay text until they meet their row.
RawValues SplitArguments(const OptionTable& table, const std::vector<std::string>& arguments,
                         std::vector<std::string>& positional) {
  CLI::App app;
  app.set_help_flag();
  std::map<std::string, CLI::Option*> options;
  std::map<std::string, std::vector<std::string>> storage;
  for (const OptionRow& row : table.rows()) {
    std::string names = "--" + row.name;
    if (!row.short_name.empty()) names += ",-" + row.short_name;
    if (std::holds_alternative<bool*>(row.target)) {
      options[row.name] = app.add_flag(names + ",!--no-" + row.name)
                              ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      continue;
    }
    CLI::Option* option = app.add_option(names, storage[row.name]);
    if (!std::holds_alternative<std::vector<std::string>*>(row.target)) option->expected(1);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(std::holds_alternative<std::vector<std::string>*>(row.target));
    options[row.name] = option;
  }
  if (table.positional() != nullptr) app.add_option("positional", positional)->expected(0, -1);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::Error& e) {
    throw Error(ErrorCode::kUsage, e.what(),
                fmt::format("{} -h lists the options", table.program()));
  }
  RawValues values;
  for (const OptionRow& row : table.rows()) {
    const CLI::Option* option = options.at(row.name);
    if (option->count() > 0) values[row.name] = option->results();
  }
  return values;
}

}  // namespace

std::vector<EffectiveOption> ParseOptions(OptionTable& table, CommonOptions& common,
                                          const std::vector<std::string>& arguments) {
  std::vector<std::string> positional;
  const RawValues given = SplitArguments(table, arguments, positional);
  if (const auto it = given.find("config"); it != given.end()) common.config = it->second.front();
  RawValues config;
  if (!common.config.empty()) config = ReadConfig(table, common.config);
  std::vector<EffectiveOption> effective;
  for (const OptionRow& row : table.rows()) {
    std::string origin = "default";
    if (const auto it = config.find(row.name); it != config.end()) {
      Assign(row, it->second);
      origin = "config";
    }
    if (const auto it = given.find(row.name); it != given.end()) {
      Assign(row, it->second);
      origin = "command line";
    }
    effective.push_back({row.name, ConfigText(row), origin});
  }
  if (table.positional() != nullptr) {
    *std::get<std::vector<std::string>*>(table.positional()->target) = positional;
  }
  return effective;
}

void CheckRequired(const OptionTable& table, const std::vector<EffectiveOption>& effective) {
  std::vector<std::string> missing;
  for (size_t i = 0; i < table.rows().size(); ++i) {
    if (table.rows()[i].required && effective[i].origin == "default") {
      missing.push_back("--" + table.rows()[i].name);
    }
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kUsage, fmt::format("missing {}", fmt::join(missing, ", ")),
              fmt::format("{} -h lists the options", table.program()));
}

}  // namespace oscar::cli
