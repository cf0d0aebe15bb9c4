#include <fmt/format.h>

#include <algorithm>

#include "oscar/cli/options.h"

namespace oscar::cli {
namespace {

constexpr size_t kTextColumn = 30;
constexpr size_t kWidth = 96;

constexpr std::string_view kExitCodes =
    "Exit codes: 0 done (and every gate passed), 1 the verdict is no, 2 wrong usage,\n"
    "3 the run failed, 130 interrupted.\n";
constexpr std::string_view kExitCodesWithoutVerdict =
    "Exit codes: 0 done, 2 wrong usage, 3 the run failed, 130 interrupted.\n";

std::string ExitCodes(const OptionTable& table) {
  return "\n" + std::string(table.judges() ? kExitCodes : kExitCodesWithoutVerdict);
}

std::string Names(const OptionRow& row) {
  std::string names = row.short_name.empty() ? "    " : fmt::format("-{}, ", row.short_name);
  names += "--" + row.name;
  if (!row.value_name.empty()) names += " " + row.value_name;
  return names;
}

std::string DefaultText(const OptionRow& row) {
  if (row.required) return "required";
  if (auto* const* x = std::get_if<int64_t*>(&row.target)) return fmt::format("default {}", **x);
  if (auto* const* x = std::get_if<double*>(&row.target)) return fmt::format("default {}", **x);
  if (auto* const* x = std::get_if<bool*>(&row.target)) {
    return **x ? fmt::format("default on, --no-{} turns it off", row.name) : "";
  }
  if (auto* const* x = std::get_if<std::string*>(&row.target)) {
    return (*x)->empty() ? "" : fmt::format("default {}", **x);
  }
  return "";
}

std::string Wrapped(std::string_view text, size_t indent) {
  std::string out;
  size_t column = indent;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    begin = end + 1;
  }
  return out;
}

std::string Entry(const OptionRow& row, bool with_detail) {
  const std::string names = Names(row);
  std::string text = row.text.brief;
  const std::string by_default = DefaultText(row);
  if (!by_default.empty()) text += fmt::format(" ({})", by_default);
  if (with_detail && !row.text.detail.empty()) text += ". " + row.text.detail;
  std::string out = "  " + names;
  out += names.size() + 4 > kTextColumn ? "\n" + std::string(kTextColumn, ' ')
                                        : std::string(kTextColumn - names.size() - 2, ' ');
  return out + Wrapped(text, kTextColumn) + "\n";
}

// "oscar-verify bench [options]", of a command with options of its own.
std::string UsageOf(const OptionTable& table, const std::string& command) {
  return fmt::format("{} {} [options]", table.program(), command);
}

std::string Usage(const OptionTable& table) {
  std::string out = fmt::format("Usage: {} [options]", table.program());
  if (table.positional() != nullptr) out += " " + table.positional()->value_name;
  out += "\n";
  for (const auto& [command, what] : table.commands()) {
    out += fmt::format("       {}   {} ({} {} -h)\n", UsageOf(table, command), what,
                       table.program(), command);
  }
  return out;
}

// The pages of docs/, each with its text in the same column or, after a long name, below it.
std::string Documents(const OptionTable& table) {
  std::string out;
  for (const auto& [page, what] : table.documents()) {
    const std::string path = "docs/" + page;
    const bool fits = path.size() < kTextColumn;
    out += "  " + path;
    out += fits ? std::string(kTextColumn - path.size(), ' ')
                : "\n" + std::string(kTextColumn + 2, ' ');
    out += what + "\n";
  }
  return out;
}

std::string Help(const OptionTable& table, bool with_detail) {
  std::string out = fmt::format("{}: {}\n\n{}", table.program(), table.summary(), Usage(table));
  if (table.positional() != nullptr) {
    out += fmt::format("\n  {}\n      {}\n", table.positional()->value_name,
                       Wrapped(table.positional()->text.brief + ". " +
                                   (with_detail ? table.positional()->text.detail : ""),
                               6));
  }
  std::string section;
  for (const OptionRow& row : table.rows()) {
    if (row.section != section) out += fmt::format("\n{}:\n", row.section);
    section = row.section;
    out += Entry(row, with_detail);
  }
  out += fmt::format("  {:<{}}-h: this list; --help: everything\n", "-h, --help", kTextColumn - 2);
  if (with_detail) {
    for (const auto& [command, what] : table.examples()) {
      out += fmt::format("\nExample, {}:\n  {}\n", what, command);
    }
    if (!table.documents().empty()) out += "\nDocuments:\n";
    out += Documents(table);
  }
  return out + ExitCodes(table);
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string ShortHelp(const OptionTable& table) { return Help(table, false); }

std::string LongHelp(const OptionTable& table) { return Help(table, true); }

std::string MarkdownPage(const OptionTable& table) {
  std::string out = fmt::format("# {}\n\n{}\n", table.program(), table.summary());
  if (table.positional() != nullptr) {
    out += fmt::format("\n`{} {}`: {}. {}\n", table.program(), table.positional()->value_name,
                       table.positional()->text.brief, table.positional()->text.detail);
  }
  for (const auto& [command, what] : table.commands()) {
    out += fmt::format("\n`{}`: {}\n", UsageOf(table, command), what);
  }
  std::string section;
  for (const OptionRow& row : table.rows()) {
    if (row.section != section) {
      out += fmt::format("\n## {}\n\n| option | meaning |\n|---|---|\n", row.section);
    }
    section = row.section;
    std::string text = row.text.brief;
    const std::string by_default = DefaultText(row);
    if (!by_default.empty()) text += fmt::format(" ({})", by_default);
    if (!row.text.detail.empty()) text += ". " + row.text.detail;
    const std::string value = row.value_name.empty() ? "" : " " + row.value_name;
    const std::string letter = row.short_name.empty() ? "" : fmt::format("`-{}`, ", row.short_name);
    out += fmt::format("| {}`--{}{}` | {} |\n", letter, row.name, Escaped(value), Escaped(text));
  }
  out += "| `-h`, `--help` | -h: one line per option; --help: everything |\n";
  for (const auto& [command, what] : table.examples()) {
    out += fmt::format("\nExample, {}:\n\n```\n{}\n```\n", what, command);
  }
  if (!table.documents().empty()) out += "\n## Documents\n\n";
  for (const auto& [page, what] : table.documents()) {
    out += fmt::format("- [{}](../{}): {}\n", page, page, what);
  }
  return out + ExitCodes(table);
}

}  // namespace oscar::cli
