#include "oscar/cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <thread>

#include "oscar/cli/messages.h"
#include "oscar/cli/terminal.h"
#include "oscar/core/error.h"
#include "oscar/core/printable.h"
#include "oscar/core/version.h"

namespace oscar::cli {
namespace {

constexpr int kExitDone = 0;
constexpr int kExitVerdictNo = 1;
constexpr int kExitUsage = 2;
constexpr int kExitFailed = 3;
constexpr int kExitInterrupted = 130;

// The handler can reach nothing but a global.
CancelToken* g_cancel = nullptr;

extern "C" void OnSignal(int) {
  if (g_cancel != nullptr) g_cancel->Cancel();
}

// The first signal asks politely, the second one kills.
void InstallHandlers(CancelToken* cancel) {
  g_cancel = cancel;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A file beyond the limit of its size then fails like one on a full disk, with a message.
  action.sa_handler = SIG_IGN;
  action.sa_flags = 0;
  sigaction(SIGXFSZ, &action, nullptr);
}

// A standard stream that was closed by the caller would give its number to the next file that is
// opened, and messages would end up in that file. Numbers are taken in ascending order; what is
// put there refuses to be used, as the closed stream did.
void OccupyClosedStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    const int mode = stream == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", mode) < 0) return;
  }
}

int ExitCodeOf(ErrorCode code) {
  if (code == ErrorCode::kUsage) return kExitUsage;
  return code == ErrorCode::kInterrupted ? kExitInterrupted : kExitFailed;
}

// The same failure as text or as JSON, on standard error.
int Fail(const std::string& program, bool json, const CommonOptions& common, std::string_view code,
         const std::string& message, const std::string& hint, int exit_code) {
  if (json) {
    Value error;
    error["schema"] = "oscar.error/1";
    error["program"] = program;
    error["error"] = Value::Object{{"code", code}, {"message", message}};
    if (!hint.empty()) error["error"]["hint"] = hint;
    error["exit_code"] = exit_code;
    Say("{}\n", error.ToJson());
    return exit_code;
  }
  const bool color = common.color == "always";
  Say("{}: {}error:{} {}\n", program, color ? "\033[31m" : "", color ? "\033[0m" : "", message);
  if (!hint.empty()) Say("hint: {}\n", hint);
  return exit_code;
}

int PrintText(const std::string& program, const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  // Both count: a text longer than the stream's buffer fails while it is written, a short one
  // when it is flushed.
  if (std::fflush(stdout) == 0 && written) return kExitDone;
  Say("{}: error: cannot write to standard output\n", program);
  return kExitFailed;
}

std::string VersionText(const OptionTable& table, const LibraryVersions& libraries) {
  std::string out =
      fmt::format("{} {} ({}), {}\n", table.program(), Version(), GitRevision(), CompilerName());
  for (const auto& [name, version] : libraries) out += fmt::format("{} {}\n", name, version);
  return out + "Implements OSCAR (arXiv:2605.17757). OScaR (arXiv:2605.19660) is another method.\n";
}

std::string ConfigListing(const std::vector<EffectiveOption>& effective) {
  std::string out;
  for (const EffectiveOption& option : effective) {
    if (!IsConfigKey(option.name)) continue;
    out += fmt::format("{} = {}  # {}\n", option.name, option.value, option.origin);
  }
  return out;
}

TerminalOptions TerminalFor(const CommonOptions& common) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  TerminalOptions options;
  options.messages = !common.quiet;
  options.color = common.color == "always" || (common.color == "auto" && terminal && !dumb &&
                                               (no_color == nullptr || *no_color == '\0'));
  const bool wanted = !common.quiet && common.progress != "never";
  options.bar = wanted && (common.progress == "always" || (terminal && !dumb));
  options.lines = wanted && !options.bar;
  return options;
}

// --verbose: what was decided before the work starts.
void TellDecisions(const std::vector<EffectiveOption>& effective, int64_t threads,
                   Progress& progress) {
  progress.Info(fmt::format("{} ({}), {}", Version(), GitRevision(), CompilerName()));
  for (const EffectiveOption& option : effective) {
    if (option.origin == "default") continue;
    progress.Info(fmt::format("--{} {} ({})", option.name, option.value, option.origin));
  }
  progress.Info(Counted(threads, "thread"));
}

// --verbose: what it took.
void TellCosts(std::chrono::steady_clock::time_point start, Progress& progress) {
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  progress.Info(fmt::format("total: {}, {:.0f} MiB of memory at most", DurationText(spent.count()),
                            static_cast<double>(usage.ru_maxrss) / 1024));  // given in KiB
}

struct Parsed {
  CommonOptions common;
  std::vector<EffectiveOption> effective;
};

int Run(OptionTable& table, const LibraryVersions& libraries, Parsed& parsed,
        const std::vector<std::string>& arguments,
        const std::function<Outcome(const CommonOptions&, const RunContext&)>& body) {
  parsed.effective = ParseOptions(table, parsed.common, arguments);
  CommonOptions& common = parsed.common;
  if (common.version) return PrintText(table.program(), VersionText(table, libraries));
  if (common.print_config) return PrintText(table.program(), ConfigListing(parsed.effective));
  CheckRequired(table, parsed.effective);
  if (common.threads == 0) {
    common.threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  }
  CancelToken cancel;
  InstallHandlers(&cancel);
  TerminalProgress terminal(table.program(), TerminalFor(common));
  const RunContext context{&terminal, &cancel, static_cast<int>(common.threads)};
  const auto start = std::chrono::steady_clock::now();
  if (common.verbose) TellDecisions(parsed.effective, common.threads, terminal);
  const Outcome outcome = body(common, context);
  if (common.verbose) TellCosts(start, terminal);
  terminal.PrintSummary();
  const std::string text = common.json ? outcome.json.ToJson(2) + "\n" : outcome.text;
  const int printed = PrintText(table.program(), text);
  if (printed != kExitDone) return printed;
  return outcome.passed ? kExitDone : kExitVerdictNo;
}

bool Contains(const std::vector<std::string>& arguments, std::string_view wanted) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return false;
    if (argument == wanted) return true;
  }
  return false;
}

}  // namespace

int RunProgram(int argc, char** argv, OptionTable& table, const LibraryVersions& libraries,
               const std::function<Outcome(const CommonOptions&, const RunContext&)>& body) {
  OccupyClosedStreams();
  Parsed parsed;
  AddCommonOptions(table, parsed.common);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (Contains(arguments, "-h")) return PrintText(table.program(), ShortHelp(table));
  if (Contains(arguments, "--help")) return PrintText(table.program(), LongHelp(table));
  if (Contains(arguments, "--help-markdown")) {
    return PrintText(table.program(), MarkdownPage(table));
  }
  // An error before parsing has finished still honours a --json among the arguments.
  const bool json = Contains(arguments, "--json");
  const auto fail = [&](std::string_view code, const std::string& message, const std::string& hint,
                        int exit_code) {
    return Fail(table.program(), json || parsed.common.json, parsed.common, code, message, hint,
                exit_code);
  };
  try {
    return Run(table, libraries, parsed, arguments, body);
  } catch (const Error& e) {
    return fail(ErrorCodeName(e.code()), e.what(), e.hint(), ExitCodeOf(e.code()));
  } catch (const std::filesystem::filesystem_error& e) {
    return fail("io", fmt::format("{}: {}", e.path1().string(), e.code().message()), "",
                kExitFailed);
  } catch (const std::bad_alloc&) {
    return fail("memory", "not enough memory", "use fewer tokens or fewer threads", kExitFailed);
  } catch (const std::exception& e) {
    return fail("internal", fmt::format("internal error: {}", e.what()),
                "this is a bug in the toolkit; please report it", kExitFailed);
  }
}

}  // namespace oscar::cli
