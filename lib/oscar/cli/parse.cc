#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "oscar/cli/config_file.h"
#include "oscar/cli/options.h"
#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/printable.h"

namespace oscar::cli {
namespace {

// The values given for one option, not looked at yet.
struct RawValue {
  std::vector<std::string> values;
  std::string where;     // for messages: "--window" or "a.conf:3: window"
  bool is_list = false;  // written as a list, if only of one value
};

using RawValues = std::map<std::string, RawValue>;

[[noreturn]] void BadValue(const std::string& where, const std::string& expected,
                           const std::string& found) {
  throw Error(ErrorCode::kUsage,
              fmt::format("{}: expected {}, found '{}'", where, expected, found));
}

std::string RangeText(const OptionRow& row) {
  return std::isinf(row.high) ? fmt::format("at least {}", row.low)
                              : fmt::format("from {} to {}", row.low, row.high);
}

// Digits with an optional minus; 010 and 0x10 are refused because readers disagree about them.
int64_t ParseInt(const OptionRow& row, const std::string& where, const std::string& text) {
  const std::string expected = fmt::format("a whole number {}", RangeText(row));
  const std::string digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.size() > 1 && digits[0] == '0') BadValue(where, expected, text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) BadValue(where, expected, text);
  if (static_cast<double>(value) < row.low || static_cast<double>(value) > row.high) {
    BadValue(where, expected, text);
  }
  return value;
}

double ParseReal(const OptionRow& row, const std::string& where, const std::string& text) {
  const std::string expected = fmt::format("a number {}", RangeText(row));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool parsed = error == std::errc() && end == text.data() + text.size();
  if (!parsed || !std::isfinite(value) || value < row.low || value > row.high) {
    BadValue(where, expected, text);
  }
  return value;
}

bool ParseBool(const std::string& where, const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  BadValue(where, "true or false", text);
}

// Validates and stores the values given for one row.
void Assign(const OptionRow& row, const RawValue& given) {
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&row.target)) {
    **list = given.values;
    return;
  }
  if (given.is_list || given.values.size() != 1) {
    throw Error(ErrorCode::kUsage,
                given.is_list ? fmt::format("{}: expected one value, found a list", given.where)
                              : fmt::format("{}: expected one value, found {}", given.where,
                                            given.values.size()));
  }
  const std::string& text = given.values.front();
  const std::string& where = given.where;
  if (auto* const* x = std::get_if<bool*>(&row.target)) **x = ParseBool(where, text);
  if (auto* const* x = std::get_if<int64_t*>(&row.target)) **x = ParseInt(row, where, text);
  if (auto* const* x = std::get_if<double*>(&row.target)) **x = ParseReal(row, where, text);
  if (auto* const* x = std::get_if<std::string*>(&row.target)) {
    if (!row.choices.empty() &&
        std::find(row.choices.begin(), row.choices.end(), text) == row.choices.end()) {
      BadValue(where, fmt::format("one of {}", fmt::join(row.choices, ", ")), text);
    }
    **x = text;
  }
}

std::string ConfigText(const OptionRow& row) {
  if (auto* const* x = std::get_if<bool*>(&row.target)) return **x ? "true" : "false";
  if (auto* const* x = std::get_if<int64_t*>(&row.target)) return fmt::format("{}", **x);
  if (auto* const* x = std::get_if<double*>(&row.target)) return fmt::format("{}", **x);
  if (auto* const* x = std::get_if<std::string*>(&row.target)) return QuotedConfigText(**x);
  const auto& list = *std::get<std::vector<std::string>*>(row.target);
  std::vector<std::string> quoted;
  for (const std::string& item : list) quoted.push_back(QuotedConfigText(item));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

// Insertions, deletions, replacements and swaps of neighbours between two names.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d.back().back();
}

// The name that was probably meant, or what lists them all. `dashes` stand before an option.
std::string HintFor(const OptionTable& table, std::string_view wrong, std::string_view dashes) {
  std::string best;
  size_t least = wrong.size() < 5 ? 2 : 3;  // at most one slip in a short name, two in others
  for (const OptionRow& row : table.rows()) {
    const bool negated = std::holds_alternative<bool*>(row.target) && wrong.starts_with("no-");
    const std::string name = (negated ? "no-" : "") + row.name;
    const size_t distance = EditDistance(wrong, name);
    if (distance >= least) continue;
    least = distance;
    best = name;
  }
  const std::string list = fmt::format("{} -h lists the options", table.program());
  return best.empty() ? list : fmt::format("did you mean {}{}? {}", dashes, best, list);
}

RawValues ReadConfig(const OptionTable& table, const std::string& path) {
  std::string text;
  try {
    text = ReadTextFile(path);
  } catch (const Error& e) {
    throw Error(ErrorCode::kUsage, fmt::format("--config: {}", e.what()));
  }
  RawValues values;
  for (ConfigItem& item : ParseConfig(text, path)) {
    const std::string at = fmt::format("{}:{}", path, item.line);
    const auto known = [&](const OptionRow& row) { return row.name == item.key; };
    if (std::none_of(table.rows().begin(), table.rows().end(), known)) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: unknown key '{}'", at, item.key),
                  HintFor(table, item.key, ""));
    }
    if (!IsConfigKey(item.key)) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: '{}' cannot stand in a configuration file", at, item.key),
                  fmt::format("give --{} on the command line", item.key));
    }
    RawValue value{std::move(item.values), fmt::format("{}: {}", at, item.key), item.is_list};
    if (!values.emplace(item.key, std::move(value)).second) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: key '{}' stands twice", at, item.key));
    }
  }
  return values;
}

// What is left of a command line, in its order: a wrong option, else a word that nothing takes.
[[noreturn]] void RefuseRest(const OptionTable& table, std::vector<std::string> rest) {
  std::erase(rest, "--");
  for (const std::string& word : rest) {
    const std::string name = word.substr(0, word.find('='));
    const size_t begin = name.find_first_not_of('-');
    if (begin == 0 || begin == std::string::npos) continue;
    throw Error(ErrorCode::kUsage, fmt::format("unknown option {}", Printable(name)),
                HintFor(table, std::string_view(name).substr(begin), "--"));
  }
  throw Error(
      ErrorCode::kUsage,
      fmt::format("unexpected argument '{}'", rest.empty() ? "--" : Printable(rest.front())),
      fmt::format("{} -h lists the options", table.program()));
}

constexpr int kMostValues = 1 << 20;

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
    // CLI11 reads "[a,b]" as two values where it allows extra ones; a large count does not.
    const bool is_list = std::holds_alternative<std::vector<std::string>*>(row.target);
    CLI::Option* option = app.add_option(names, storage[row.name]);
    option->expected(1, is_list ? kMostValues : 1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    options[row.name] = option;
  }
  if (table.positional() != nullptr) app.add_option("positional", positional)->expected(0, -1);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ExtrasError&) {
    RefuseRest(table, app.remaining());
  } catch (const CLI::Error& e) {
    throw Error(ErrorCode::kUsage, e.what(),
                fmt::format("{} -h lists the options", table.program()));
  }
  RawValues values;
  for (const OptionRow& row : table.rows()) {
    const CLI::Option* option = options.at(row.name);
    if (option->count() > 0) values[row.name] = {option->results(), "--" + row.name};
  }
  return values;
}

// --print-config prints options that were not given as "" and [].
bool IsEmpty(const OptionRow& row) {
  if (auto* const* x = std::get_if<std::string*>(&row.target)) return (*x)->empty();
  if (auto* const* x = std::get_if<std::vector<std::string>*>(&row.target)) return (*x)->empty();
  return false;
}

}  // namespace

bool IsConfigKey(std::string_view option) {
  return option != "config" && option != "print-config" && option != "version";
}

std::vector<EffectiveOption> ParseOptions(OptionTable& table, CommonOptions& common,
                                          const std::vector<std::string>& arguments) {
  std::vector<std::string> positional;
  const RawValues given = SplitArguments(table, arguments, positional);
  if (const auto it = given.find("config"); it != given.end()) {
    common.config = it->second.values.front();
  }

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
    const OptionRow& row = table.rows()[i];
    if (row.required && (effective[i].origin == "default" || IsEmpty(row))) {
      missing.push_back("--" + row.name);
    }
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kUsage, fmt::format("missing {}", fmt::join(missing, ", ")),
              fmt::format("{} -h lists the options", table.program()));
}

}  // namespace oscar::cli
