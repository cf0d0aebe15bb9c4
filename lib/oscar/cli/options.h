// One table of options per program: the parser, -h, --help, configuration keys, --print-config and
// the documentation page all come from its rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace oscar::cli {

// Where an option's text stands in help and documentation.
struct OptionText {
  std::string brief;   // a few words, for -h
  std::string detail;  // further sentences for --help: default, range, unit, consequences
};

struct OptionRow {
  std::string name;        // without dashes, kebab-case; config key as well
  std::string short_name;  // one letter or empty
  std::string value_name;  // "FILE", "N"; empty for flags
  OptionText text;
  std::string section;
  bool required = false;
  std::vector<std::string> choices;  // permitted values of a choice
  double low = 0, high = 0;          // permitted range of numbers, inclusive
  std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*> target;
};

// Rows in the order in which help prints them. Targets must outlive the table; their values at
// registration are the defaults.
class OptionTable {
 public:
  OptionTable(std::string program, std::string summary);

  void Section(std::string title);
  // --name and --no-name.
  void Flag(std::string name, bool* target, OptionText text);
  void Int(std::string name, std::string value_name, int64_t* target, int64_t low, int64_t high,
           OptionText text);
  void Real(std::string name, std::string value_name, double* target, double low, double high,
            OptionText text);
  void Text(std::string name, std::string value_name, std::string* target, OptionText text);
  void Choice(std::string name, std::string* target, std::vector<std::string> choices,
              OptionText text);
  // Takes one or more values and may be repeated.
  void List(std::string name, std::string value_name, std::vector<std::string>* target,
            OptionText text);
  // The positional arguments (oscar-zoo only).
  void Positional(std::string value_name, std::vector<std::string>* target, OptionText text);
  // Marks the last added row as required / gives it a short name.
  void Required();
  void Short(std::string letter);
  // A command with options and a table of its own, named in the usage.
  void Command(std::string name, std::string what);
  // The program writes no files: it has no --force.
  void WritesNothing() { writes_ = false; }
  // The program has no verdict, and so no exit code 1.
  void GivesNoVerdict() { judges_ = false; }
  // A page of docs/ ("formats/trace.md"), named in --help and linked from the program's own page.
  void Document(std::string page, std::string what);
  // A command line shown in --help.
  void Example(std::string command, std::string what);

  bool judges() const { return judges_; }
  bool writes() const { return writes_; }
  const std::string& program() const { return program_; }
  const std::string& summary() const { return summary_; }
  const std::vector<OptionRow>& rows() const { return rows_; }
  const OptionRow* positional() const { return has_positional_ ? &positional_ : nullptr; }
  const std::vector<std::pair<std::string, std::string>>& commands() const { return commands_; }
  const std::vector<std::pair<std::string, std::string>>& documents() const { return documents_; }
  const std::vector<std::pair<std::string, std::string>>& examples() const { return examples_; }

 private:
  OptionRow& Add(std::string name, std::string value_name, OptionText text);

  std::string program_, summary_, section_;
  std::vector<OptionRow> rows_;
  OptionRow positional_;
  bool has_positional_ = false;
  bool writes_ = true;
  bool judges_ = true;
  std::vector<std::pair<std::string, std::string>> commands_, documents_, examples_;
};

// Text of -h (a brief text per option) and of --help.
std::string ShortHelp(const OptionTable& table);
std::string LongHelp(const OptionTable& table);
// The Markdown page docs/cli/<program>.md; a contract test compares it with the file.
std::string MarkdownPage(const OptionTable& table);

// Options every program has: --config --print-config --json --quiet --verbose --color --progress
// --threads --force --version; no --force where nothing is written. RunProgram adds them.
struct CommonOptions {
  std::string config;
  bool print_config = false;
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  std::string color = "auto";
  std::string progress = "auto";
  int64_t threads = 0;  // 0: as many as the machine has cores
  bool force = false;
  bool version = false;
};

// Adds the rows of the common options under the section "Common".
void AddCommonOptions(OptionTable& table, CommonOptions& common);

// One option's effective value and where it comes from.
struct EffectiveOption {
  std::string name;
  std::string value;   // as it can stand in a configuration file
  std::string origin;  // "default", "config" or "command line"
};

// False for --config, --print-config and --version: they say what to do with a configuration and
// are no part of one.
bool IsConfigKey(std::string_view option);

// Parses arguments (without the program's name) and the file named by --config into the targets.
// Throws Error(kUsage) for an unknown option or key, a value out of range (expected and found),
// a repeated single-valued option; missing required options are reported by CheckRequired.
std::vector<EffectiveOption> ParseOptions(OptionTable& table, CommonOptions& common,
                                          const std::vector<std::string>& arguments);
// Throws Error(kUsage) naming the missing required options.
void CheckRequired(const OptionTable& table, const std::vector<EffectiveOption>& effective);

}  // namespace oscar::cli
