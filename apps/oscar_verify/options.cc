#include "oscar_verify/options.h"

#include <charconv>
#include <filesystem>
#include <limits>

#include "oscar/core/error.h"

namespace oscar {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

void AddInputs(cli::OptionTable& table, VerifyArguments& a) {
  table.Section("What is verified, and on what");
  table.List("zoo", "DIR", &a.zoo,
             {"RotationZoo entries: folders with a K file, a V file and a manifest",
              "Without any, only the baselines are measured."});
  table.List("traces", "FILE", &a.traces,
             {"held-out traces of oscar-dump, with rows",
              "Errors of keys, values, logits and outputs, and attention KL, at chosen queries."});
  table.Text("model", "PATH", &a.model,
             {"Hugging Face folder or GGUF file: run it with its cache quantised",
              "Adds hidden-state error, next-token KL, top-1 agreement and perplexity ratio. Needs "
              "--text."});
  table.List("text", "FILE", &a.text,
             {"held-out text for --model", "Same files as oscar-dump takes."});
  table.Choice("template", &a.chat_template, {"auto", "none", "chatml", "smollm2", "llama3"},
               {"chat template for --text", "auto recognises the model's own template."});
  table.Int("tokens", "N", &a.tokens, 1, kMany, {"tokens of --text to run", ""});
  table.Int("window", "N", &a.window, 1, kMany, {"tokens of one sequence of --text", ""});
  table.Text("device", "DEVICE", &a.device, {"cpu, cuda or cuda:<i>", "Where --model runs."});
}

void AddSchemes(cli::OptionTable& table, VerifyArguments& a) {
  table.Section("Schemes");
  table.List("schemes", "NAME", &a.schemes,
             {"schemes to measure on traces (default all)",
              "all, or names: bf16, naive, hadamard, clip-only, hadamard-clip, oscar, "
              "oscar-lloyd-max, oscar:<tag>."});
  table.List("model-schemes", "NAME", &a.model_schemes,
             {"schemes to run the model with (default: default)",
              "default is bf16, naive, hadamard, clip-only and oscar; each is one more run."});
  table.Int("sink", "N", &a.sink, 0, kMany, {"first tokens kept in 16 bits", ""});
  table.Int("recent", "N", &a.recent, 0, kMany,
            {"newest tokens kept in 16 bits", "The query's own token is one of them."});
  table.Choice(
      "windows", &a.windows, {"on", "off"},
      {"whether sink and recent tokens stay in 16 bits", "off: every position is quantised."});
  table.Int("group-size", "N", &a.group_size, 0, 1 << 16,
            {"channels that share scale and zero", "0: the whole head."});
  table.Choice("scale-dtype", &a.scale_dtype, {"f32", "f16", "bf16"},
               {"type in which scale and zero are stored", "Codes use the float32 values."});
  table.Choice("clip-mode", &a.clip_mode, {"sort", "bisect"},
               {"how the clip threshold is found",
                "sort: exact order statistic, as at prefill; bisect: as in the decode flush."});
  table.Text("clip", "K,V", &a.clip,
             {"clip ratios of all schemes that clip",
              "Instead of an entry's own ratios and of the public 0.96,0.92."});
  table.Flag("as-served", &a.as_served,
             {"round rotations and rotated rows to bfloat16, as engines do", "Default: off."});
  table.Int("positions", "N", &a.positions, 1, kMany,
            {"query positions per sequence of a trace", "Evenly spaced."});
  table.Flag("controls", &a.controls,
             {"measure noise of the same norm beside each scheme", "With --model: beside oscar."});
  table.Int("seed", "N", &a.seed, 0, std::numeric_limits<int64_t>::max(),
            {"seed of the noise", ""});
}

void AddVerdict(cli::OptionTable& table, VerifyArguments& a) {
  table.Section("Verdict and output");
  table.Text("gates", "FILE", &a.gates,
             {"gates that make the verdict",
              "Default: the built-in copy of configs/verify/default.json."});
  table.Flag("allow-overlap", &a.allow_overlap,
             {"measure on text that calibration has seen", "Default: refused."});
  table.Flag(
      "selftest", &a.selftest,
      {"check every metric with an error of known size, and stop", "Exit code 1 when one is off."});
  table.Flag("layers", &a.layers,
             {"print tables by region and by layer", "Always in --json and --html."});
  table.Text("html", "FILE", &a.html,
             {"write the report as a page", "With --report: both files or neither."});
  table.Text("report", "FILE", &a.report, {"write the record of --json to a file", ""});
}

// Names may be separated by commas as well as by spaces.
std::vector<std::string> Names(const std::vector<std::string>& given) {
  std::vector<std::string> names;
  for (const std::string& item : given) {
    size_t begin = 0;
    for (size_t end = 0; end != std::string::npos; begin = end + 1) {
      end = item.find(',', begin);
      names.push_back(item.substr(begin, end - begin));
    }
  }
  return names;
}

// "0.96,0.92" into the two ratios.
void ParseClip(const std::string& text, MethodSettings& method) {
  if (text.empty()) return;
  double key = 0, value = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, key);
  const bool comma = first.ec == std::errc() && first.ptr != end && *first.ptr == ',';
  const auto second = comma ? std::from_chars(first.ptr + 1, end, value) : first;
  if (!comma || second.ec != std::errc() || second.ptr != end || !(key >= 0 && key <= 1) ||
      !(value >= 0 && value <= 1)) {
    throw Error(ErrorCode::kUsage,
                "--clip: expected two ratios from 0 to 1 such as 0.96,0.92, found '" + text + "'");
  }
  method.key_clip = key;
  method.value_clip = value;
}

}  // namespace

cli::OptionTable VerifyTable(VerifyArguments& a) {
  cli::OptionTable table("oscar-verify",
                         "what 2 bits cost: cache schemes against BF16 on held-out data");
  AddInputs(table, a);
  AddSchemes(table, a);
  AddVerdict(table, a);
  table.Example(
      "oscar-verify --model tests/golden/model_oracle/tiny/llama --text datasets/prose_heldout.txt "
      "--tokens 256 --window 128 --sink 4 --recent 16 --model-schemes bf16 naive",
      "baselines on a small model");
  return table;
}

void CheckOutputs(const VerifyArguments& arguments, bool force) {
  namespace fs = std::filesystem;
  const auto resolved = [](const std::string& path) { return fs::weakly_canonical(path); };
  if (!arguments.html.empty() && !arguments.report.empty() &&
      resolved(arguments.html) == resolved(arguments.report)) {
    throw Error(ErrorCode::kUsage, "--html and --report name the same file");
  }
  for (const fs::path path : {arguments.html, arguments.report}) {
    if (path.empty()) continue;
    const auto refuse = [&](const char* why, const char* hint) {
      throw Error(ErrorCode::kIo, path.string() + why, hint);
    };
    if (fs::is_directory(path)) refuse(" is a folder", "name a file");
    if (!force && fs::exists(path)) refuse(" exists", "use --force to replace it");
    if (path.has_parent_path() && !fs::is_directory(path.parent_path())) {
      refuse(": its folder does not exist", "make the folder first");
    }
  }
}

VerifyOptions ToOptions(const VerifyArguments& a) {
  VerifyOptions o;
  o.traces.zoo.assign(a.zoo.begin(), a.zoo.end());
  o.traces.traces.assign(a.traces.begin(), a.traces.end());
  o.traces.schemes = Names(a.schemes);
  o.traces.method.windows = {a.sink, a.recent};
  o.traces.method.use_windows = a.windows == "on";
  o.traces.method.group_size = a.group_size;
  o.traces.method.scale_type = a.scale_dtype == "f16"    ? ScaleType::kF16
                               : a.scale_dtype == "bf16" ? ScaleType::kBF16
                                                         : ScaleType::kF32;
  o.traces.method.clip_mode = a.clip_mode == "bisect" ? ClipMode::kBisect : ClipMode::kSort;
  o.traces.method.as_served = a.as_served;
  ParseClip(a.clip, o.traces.method);
  o.traces.positions = a.positions;
  o.traces.seed = static_cast<uint64_t>(a.seed);
  o.traces.controls = a.controls;
  o.traces.allow_overlap = a.allow_overlap;
  o.traces.gates = a.gates;
  o.model.model = a.model;
  o.model.text.assign(a.text.begin(), a.text.end());
  o.model.chat_template = a.chat_template;
  o.model.tokens = a.tokens;
  o.model.window = a.window;
  o.model.device = a.device;
  o.model.schemes = Names(a.model_schemes);
  return o;
}

}  // namespace oscar
