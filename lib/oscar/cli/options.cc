#include "oscar/cli/options.h"

#include <fmt/format.h>

#include <utility>

#include "oscar/core/error.h"

namespace oscar::cli {

OptionTable::OptionTable(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {}

void OptionTable::Section(std::string title) { section_ = std::move(title); }

OptionRow& OptionTable::Add(std::string name, std::string value_name, OptionText text) {
  for (const OptionRow& row : rows_) OSCAR_CHECK(row.name != name);
  OptionRow row;
  row.name = std::move(name);
  row.value_name = std::move(value_name);
  row.text = std::move(text);
  row.section = section_;
  rows_.push_back(std::move(row));
  return rows_.back();
}

void OptionTable::Flag(std::string name, bool* target, OptionText text) {
  Add(std::move(name), "", std::move(text)).target = target;
}

void OptionTable::Int(std::string name, std::string value_name, int64_t* target, int64_t low,
                      int64_t high, OptionText text) {
  OptionRow& row = Add(std::move(name), std::move(value_name), std::move(text));
  row.low = static_cast<double>(low);
  row.high = static_cast<double>(high);
  row.target = target;
}

void OptionTable::Real(std::string name, std::string value_name, double* target, double low,
                       double high, OptionText text) {
  OptionRow& row = Add(std::move(name), std::move(value_name), std::move(text));
  row.low = low;
  row.high = high;
  row.target = target;
}

void OptionTable::Text(std::string name, std::string value_name, std::string* target,
                       OptionText text) {
  Add(std::move(name), std::move(value_name), std::move(text)).target = target;
}

void OptionTable::Choice(std::string name, std::string* target, std::vector<std::string> choices,
                         OptionText text) {
  OptionRow& row =
      Add(std::move(name), fmt::format("{}", fmt::join(choices, "|")), std::move(text));
  row.choices = std::move(choices);
  row.target = target;
}

void OptionTable::List(std::string name, std::string value_name, std::vector<std::string>* target,
                       OptionText text) {
  Add(std::move(name), std::move(value_name), std::move(text)).target = target;
}

void OptionTable::Positional(std::string value_name, std::vector<std::string>* target,
                             OptionText text) {
  positional_.value_name = std::move(value_name);
  positional_.text = std::move(text);
  positional_.target = target;
  has_positional_ = true;
}

void OptionTable::Required() { rows_.back().required = true; }

void OptionTable::Short(std::string letter) { rows_.back().short_name = std::move(letter); }

void OptionTable::Command(std::string name, std::string what) {
  commands_.emplace_back(std::move(name), std::move(what));
}

void OptionTable::Document(std::string page, std::string what) {
  documents_.emplace_back(std::move(page), std::move(what));
}

void OptionTable::Example(std::string command, std::string what) {
  examples_.emplace_back(std::move(command), std::move(what));
}

void AddCommonOptions(OptionTable& table, CommonOptions& common) {
  table.Section("Common");
  table.Text("config", "FILE", &common.config,
             {"read options from FILE",
              "Lines of the form name = value with the long option names; the command line wins. "
              "An unknown name is an error. The form: docs/formats/config.md."});
  table.Flag("print-config", &common.print_config,
             {"print the effective options with their origin and stop",
              "The output can be given back to --config."});
  table.Flag(
      "json", &common.json,
      {"print one JSON object instead of text",
       "Sorted keys, one object on standard output; errors are JSON too, on standard error."});
  table.Flag("quiet", &common.quiet, {"print only results and errors", "Default: off."});
  table.Short("q");
  table.Flag("verbose", &common.verbose,
             {"also print version, options given, total time and memory",
              "On standard error; oscar-verify also prints its errors by layer. Numbers stay the "
              "same."});
  table.Short("v");
  table.Choice(
      "color", &common.color, {"auto", "always", "never"},
      {"colour of messages",
       "auto: when standard error is a terminal, NO_COLOR is unset and TERM is not dumb."});
  table.Choice("progress", &common.progress, {"auto", "always", "never"},
               {"progress bar on standard error",
                "auto: a bar on a terminal, else one line every 30 seconds."});
  table.Int("threads", "N", &common.threads, 0, 4096,
            {"worker threads", "0: as many as the machine has cores (default)."});
  if (table.writes()) {
    table.Flag(
        "force", &common.force,
        {"replace existing output", "Without it, existing output is an error. Default: off."});
  }
  table.Flag("version", &common.version, {"print versions and stop", ""});
}

}  // namespace oscar::cli
