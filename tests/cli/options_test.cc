#include "oscar/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "support/golden.h"

namespace oscar::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Options {
  int64_t window = 2048;
  double clip = 0.96;
  bool resume = false;
  bool windows = true;
  std::string name;
  std::string mode = "sort";
  std::vector<std::string> traces;
};

struct Fixture {
  Options options;
  CommonOptions common;
  OptionTable table{"oscar-test", "a program for tests"};
  std::vector<EffectiveOption> effective;

  Fixture() {
    table.Section("Input");
    table.List("traces", "FILE", &options.traces, {"traces", ""});
    table.Required();
    table.Int("window", "N", &options.window, 1, 1 << 20, {"window", "In tokens."});
    table.Real("clip", "C", &options.clip, 0, 1, {"clip", ""});
    table.Flag("resume", &options.resume, {"resume", ""});
    table.Flag("windows", &options.windows, {"windows", ""});
    table.Text("name", "NAME", &options.name, {"name", ""});
    table.Choice("mode", &options.mode, {"sort", "bisect"}, {"mode", ""});
    AddCommonOptions(table, common);
    table.Document("formats/test.md", "a format");
  }

  void Parse(const std::vector<std::string>& arguments) {
    effective = ParseOptions(table, common, arguments);
  }

  std::string Failure(const std::vector<std::string>& arguments) {
    try {
      Parse(arguments);
      CheckRequired(table, effective);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "no error";
  }

  std::string Origin(const std::string& name) const {
    for (const EffectiveOption& option : effective) {
      if (option.name == name) return option.origin;
    }
    return "absent";
  }
};

TEST(Options, StoresEveryKind) {
  Fixture f;
  f.Parse({"--traces", "a", "b", "--window=7", "--clip", "0.5", "--resume", "--no-windows",
           "--name", "x", "--mode", "bisect", "--traces", "c", "-q"});
  EXPECT_THAT(f.options.traces, ElementsAre("a", "b", "c"));
  EXPECT_EQ(f.options.window, 7);
  EXPECT_EQ(f.options.clip, 0.5);
  EXPECT_TRUE(f.options.resume);
  EXPECT_FALSE(f.options.windows);
  EXPECT_EQ(f.options.name, "x");
  EXPECT_EQ(f.options.mode, "bisect");
  EXPECT_TRUE(f.common.quiet);
}

TEST(Options, DefaultsStay) {
  Fixture f;
  f.Parse({"--traces", "a"});
  CheckRequired(f.table, f.effective);
  EXPECT_EQ(f.options.window, 2048);
  EXPECT_TRUE(f.options.windows);
  EXPECT_EQ(f.Origin("window"), "default");
  EXPECT_EQ(f.Origin("traces"), "command line");
}

TEST(Options, RefusesWithOneClearLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--traces", "a", "--windo", "7"}, "--windo"},
      {{"--traces", "a", "--window", "0"},
       "--window: expected a whole number from 1 to 1048576, found '0'"},
      {{"--traces", "a", "--window", "010"}, "found '010'"},
      {{"--traces", "a", "--window", "0x10"}, "found '0x10'"},
      {{"--traces", "a", "--window", "7k"}, "found '7k'"},
      {{"--traces", "a", "--window", "99999999999999999999"}, "found '99999999999999999999'"},
      {{"--traces", "a", "--window", "7", "--window", "8"},
       "--window: expected one value, found 2"},
      {{"--traces", "a", "--clip", "nan"}, "--clip: expected a number from 0 to 1, found 'nan'"},
      {{"--traces", "a", "--clip", "inf"}, "found 'inf'"},
      {{"--traces", "a", "--clip", "1.5"}, "found '1.5'"},
      {{"--traces", "a", "--clip", ""}, "found ''"},
      {{"--traces", "a", "--mode", "fast"}, "--mode: expected one of sort, bisect, found 'fast'"},
      {{"--traces", "a", "--resume", "--no-resume"}, "--resume: expected one value, found 2"},
      {{"--traces", "a", "--name"}, "--name"},
      {{"--traces"}, "--traces"},
      {{"stray", "--traces", "a"}, "stray"},
      {{}, "missing --traces"},
  };
  for (const auto& [arguments, message] : cases) {
    Fixture f;
    EXPECT_THAT(f.Failure(arguments), HasSubstr(message));
  }
}

TEST(Options, ConfigFileStandsBetweenDefaultAndCommandLine) {
  const auto folder = test::FreshFolder("options_config");
  WriteTextFile(folder / "a.conf",
                "window = 512\nclip = 0.25 # comment\ntraces = [\"x\", \"y\"]\nresume = true\n");
  Fixture f;
  f.Parse({"--config", (folder / "a.conf").string(), "--clip", "0.75"});
  EXPECT_EQ(f.options.window, 512);
  EXPECT_EQ(f.options.clip, 0.75);
  EXPECT_THAT(f.options.traces, ElementsAre("x", "y"));
  EXPECT_TRUE(f.options.resume);
  EXPECT_EQ(f.Origin("window"), "config");
  EXPECT_EQ(f.Origin("clip"), "command line");
}

TEST(Options, ConfigErrorsNameFileLineAndKey) {
  const auto folder = test::FreshFolder("options_config_errors");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"windo = 5\n", "b.conf:1: unknown key 'windo'"},
      {"\n# x\n[section]\nwindow = 5\n", "b.conf:3: sections are not known"},
      {"clip = 0.5\nwindow = 010\n",
       "b.conf:2: window: expected a whole number from 1 to 1048576, found '010'"},
      {"window = nan\n", "found 'nan'"},
      {"window = [5]\n", "b.conf:1: window: expected one value, found a list"},
      {"window = 5\nclip = 1\nwindow = 6\n", "b.conf:3: key 'window' stands twice"},
      {"resume = yes\n", "b.conf:1: resume: expected true or false, found 'yes'"},
      {"config = \"other.conf\"\n", "b.conf:1: 'config' cannot stand in a configuration file"},
      {"print-config = true\n", "b.conf:1: 'print-config' cannot stand"},
      {"version = true\n", "b.conf:1: 'version' cannot stand"},
      {"window\n", "b.conf:1: expected '=' after 'window', found the end of the line"},
      {"window =\n", "b.conf:1: expected a value, found the end of the line"},
      {"window = # 5\n", "b.conf:1: expected a value, found '#'"},
      {"window = 5 6\n", "b.conf:1: expected the end of the line, found '6'"},
      {"= 5\n", "b.conf:1: expected a key, found '='"},
      {"name = \"x\n", "b.conf:1: a quote is not closed"},
      {"name = 'x\n", "b.conf:1: a quote is not closed"},
      {"name = \"x\\", "b.conf:1: a quote is not closed"},
      {"name = \"\\q\"\n", "b.conf:1: unknown escape '\\q'"},
      {"name = \"\\u12\"\n", "b.conf:1: \\u lacks digits"},
      {"name = \"\\ud800\"\n", "b.conf:1: \\u of no character"},
      {"name = \"\\U00110000\"\n", "b.conf:1: \\U of no character"},
      {std::string("name = \"a\0b\"\n", 13), "b.conf:1: control character 0x00"},
      {"name = run#1\n", "b.conf:1: '#' inside a value without quotes"},
      {"name = it's\n", "b.conf:1: ''' inside a value without quotes"},
      {"traces = [\n  \"x\",\n  \"y\"\n", "b.conf:4: the list that starts in line 1 has no end"},
      {"traces = [\"x\" \"y\"]\n", "b.conf:1: expected ',' or ']', found '\"'"},
      {"traces = [\"x\", [\"y\"]]\n", "b.conf:1: lists do not nest"},
      {"traces = [\"x\"] ]\n", "b.conf:1: expected the end of the line, found ']'"},
      {"traces = [,]\n", "b.conf:1: expected a value, found ','"},
  };
  for (const auto& [text, message] : cases) {
    WriteTextFile(folder / "b.conf", text);
    Fixture f;
    EXPECT_THAT(f.Failure({"--traces", "a", "--config", (folder / "b.conf").string()}),
                HasSubstr(message))
        << text;
  }
  Fixture f;
  EXPECT_THAT(f.Failure({"--config", (folder / "none.conf").string()}), HasSubstr("none.conf"));
}

TEST(Options, ConfigTakesEveryFormOfValue) {
  const auto folder = test::FreshFolder("options_config_forms");
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"(traces = ["a#b", "c"] # two)", {"a#b", "c"}},
      {R"(traces = ["say \"x\", y", 'C:\dir "z"'])", {"say \"x\", y", R"(C:\dir "z")"}},
      {"traces = [ # first\n  \"a\", # it's\n\n  'b',\r\n]\r\n", {"a", "b"}},
      {"traces = \"one, two\"", {"one, two"}},
      {"traces = [a/b.h5,c]", {"a/b.h5", "c"}},
      {R"(traces = ["\t\u00e9\u20ac\U0001F600\\"])", {"\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\\"}},
      {"\xef\xbb\xbf# made elsewhere\r\ntraces=[\"a\"]", {"a"}},
      {"\xef\xbb\xbftraces = ['']", {""}},
      {"traces = []", {}},
  };
  for (const auto& [text, expected] : cases) {
    WriteTextFile(folder / "c.conf", text);
    Fixture f;
    f.Parse({"--config", (folder / "c.conf").string()});
    EXPECT_EQ(f.options.traces, expected) << text;
  }
}

TEST(Options, PrintedConfigReadsBackAsItWas) {
  const auto folder = test::FreshFolder("options_config_back");
  const std::vector<std::string> hard = {"a#b",  "say \"x\"", R"(back\slash)", "[a,b]",
                                         "it's", "",          "line\nbreak",   "tab\t",
                                         " # ",  "a, b",      "\xc3\xa9"};
  Fixture first;
  first.options.traces = hard;
  first.options.name = "x\"#\\";
  first.Parse({});
  std::string text;
  for (const EffectiveOption& option : first.effective) {
    if (IsConfigKey(option.name)) text += option.name + " = " + option.value + "  # default\n";
  }
  WriteTextFile(folder / "d.conf", text);
  Fixture second;
  second.Parse({"--config", (folder / "d.conf").string()});
  EXPECT_EQ(second.options.traces, hard);
  EXPECT_EQ(second.options.name, "x\"#\\");
}

TEST(Options, RequiredOptionsThatAConfigLeavesEmptyAreMissing) {
  const auto folder = test::FreshFolder("options_config_required");
  WriteTextFile(folder / "e.conf", "traces = []\n");
  Fixture f;
  EXPECT_EQ(f.Failure({"--config", (folder / "e.conf").string()}), "missing --traces");
}

TEST(Options, BracketsOnTheCommandLineAreText) {
  Fixture f;
  f.Parse({"--traces", "[a,b]", "c", "--name", "[x]"});
  EXPECT_THAT(f.options.traces, ElementsAre("[a,b]", "c"));
  EXPECT_EQ(f.options.name, "[x]");
}

// What was wrong, in the order of the command line, and what was probably meant.
TEST(Options, UnknownNamesAreAnsweredWithTheNearestOne) {
  const auto failure = [](const std::vector<std::string>& arguments) {
    Fixture f;
    try {
      f.Parse(arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return std::string(error.what()) + "|" + error.hint();
    }
    return std::string();
  };
  EXPECT_THAT(failure({"--trcaes", "x"}),
              testing::StartsWith("unknown option --trcaes|did you mean --traces?"));
  EXPECT_THAT(failure({"--windw=7"}),
              testing::StartsWith("unknown option --windw|did you mean --window?"));
  EXPECT_THAT(failure({"--no-resum"}), HasSubstr("|did you mean --no-resume?"));
  EXPECT_THAT(failure({"--zzzzzzzz"}),
              testing::StartsWith("unknown option --zzzzzzzz|oscar-test -h lists"));
  EXPECT_THAT(failure({"--", "y"}), testing::StartsWith("unexpected argument 'y'|"));
  const std::filesystem::path file = test::FreshFolder("options_typo") / "a.conf";
  WriteTextFile(file, "windwo = 7\n");
  EXPECT_THAT(failure({"--config", file.string()}),
              HasSubstr("unknown key 'windwo'|did you mean window?"));
}

TEST(Options, HelpNamesEveryOption) {
  Fixture f;
  for (const std::string& help : {ShortHelp(f.table), LongHelp(f.table), MarkdownPage(f.table)}) {
    for (const OptionRow& row : f.table.rows()) {
      EXPECT_THAT(help, HasSubstr("--" + row.name));
      EXPECT_THAT(help, HasSubstr(row.text.brief));
    }
    EXPECT_THAT(help, HasSubstr("130 interrupted"));
  }
  for (const OptionRow& row : f.table.rows()) {
    if (row.short_name.empty()) continue;
    EXPECT_THAT(ShortHelp(f.table), HasSubstr("-" + row.short_name + ", --" + row.name));
    EXPECT_THAT(MarkdownPage(f.table), HasSubstr("| `-" + row.short_name + "`, `--" + row.name));
  }
  EXPECT_THAT(MarkdownPage(f.table), HasSubstr("| `-h`, `--help` |"));
  EXPECT_THAT(MarkdownPage(f.table), HasSubstr("[formats/test.md](../formats/test.md): a format"));
  EXPECT_THAT(LongHelp(f.table), HasSubstr("docs/formats/test.md"));
  EXPECT_THAT(ShortHelp(f.table), HasSubstr("(default 2048)"));
  EXPECT_THAT(ShortHelp(f.table), HasSubstr("(required)"));
  EXPECT_THAT(ShortHelp(f.table), testing::Not(HasSubstr("In tokens.")));
}

TEST(Options, HelpNamesTheExitCodesThatAProgramHas) {
  Fixture f;
  EXPECT_THAT(ShortHelp(f.table), HasSubstr("1 the verdict is no"));
  f.table.GivesNoVerdict();
  for (const std::string& help : {ShortHelp(f.table), LongHelp(f.table), MarkdownPage(f.table)}) {
    EXPECT_THAT(help, HasSubstr("Exit codes: 0 done, 2 wrong usage, 3 the run failed, "
                                "130 interrupted.\n"));
    EXPECT_THAT(help, testing::Not(HasSubstr("verdict")));
  }
}

TEST(Options, HelpNamesCommandsWithOptionsOfTheirOwn) {
  Fixture f;
  f.table.Command("time", "how fast it is");
  for (const std::string& help : {ShortHelp(f.table), LongHelp(f.table)}) {
    EXPECT_THAT(help, HasSubstr("Usage: oscar-test [options]\n"
                                "       oscar-test time [options]   how fast it is"
                                " (oscar-test time -h)\n"));
  }
  EXPECT_THAT(MarkdownPage(f.table), HasSubstr("\n`oscar-test time [options]`: how fast it is"));
}

TEST(Options, HelpKeepsTheNameOfADocumentApart) {
  Fixture f;
  f.table.Document("formats/of-a-very-long-name.md", "another format");
  f.table.Document("formats/exactly-thirty.md", "a third format");
  EXPECT_THAT(LongHelp(f.table), HasSubstr("  docs/formats/of-a-very-long-name.md\n" +
                                           std::string(32, ' ') + "another format\n"));
  EXPECT_THAT(LongHelp(f.table), HasSubstr("  docs/formats/test.md          a format\n"));
  EXPECT_THAT(LongHelp(f.table), HasSubstr("docs/formats/exactly-thirty.md\n"));
}

TEST(Options, ProgramsThatWriteNothingHaveNoForce) {
  CommonOptions common;
  OptionTable table{"oscar-test", "reads only"};
  table.WritesNothing();
  AddCommonOptions(table, common);
  EXPECT_THAT(LongHelp(table), testing::Not(HasSubstr("--force")));
  EXPECT_THROW(ParseOptions(table, common, {"--force"}), Error);
  EXPECT_THAT(LongHelp(Fixture().table), HasSubstr("--force"));
}

}  // namespace
}  // namespace oscar::cli
