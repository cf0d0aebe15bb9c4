#include "oscar_verify/options.h"

#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/outputs.h"

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
  table.Text("device", "DEVICE", &a.device,
             {"cpu, cuda, cuda:<i> or twin",
              "Where --model runs, and what --traces are verified with: cpu computes the metrics "
              "of every scheme; cuda runs the CUDA kernels that serve a cache, beside the BF16 "
              "kernel, and reports from their own output (needs a build with -DOSCAR_CUDA=ON and "
              "a Hopper GPU); twin runs the arithmetic of these kernels on the CPU, for --traces "
              "only. oscar-verify bench times the kernels at model shapes."});
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
  table.Text("sink", "N", &a.sink,
             {"first tokens kept in 16 bits",
              "auto: what the entries of --zoo were made for; 64 without any."});
  table.Text(
      "recent", "N", &a.recent,
      {"newest tokens kept in 16 bits",
       "The query's own token is one of them. auto: what the entries of --zoo were made for; "
       "256 without any."});
  table.Text(
      "flush", "N", &a.flush,
      {"tokens that leave the recent window at a time",
       "8 is the public engine's ring, which keeps recent to recent + 7 tokens exact (its "
       "flush clips with --clip-mode bisect); 1: one by one. auto: what the entries of --zoo "
       "were made for; 1 without any."});
  table.Choice(
      "windows", &a.windows, {"on", "off"},
      {"whether sink and recent tokens stay in 16 bits", "off: every position is quantised."});
  table.Text("group-size", "N", &a.group_size,
             {"channels that share scale and zero",
              "0: the whole head. auto: what the entries of --zoo were made for; 0 without any."});
  table.Choice("scale-dtype", &a.scale_dtype, {"auto", "f32", "f16", "bf16"},
               {"type in which scale and zero are stored",
                "Codes use the float32 values. auto: what the entries of --zoo were made for; f32 "
                "without any."});
  table.Choice("clip-mode", &a.clip_mode, {"sort", "bisect"},
               {"how the clip threshold is found",
                "sort: exact order statistic, as at prefill; bisect: as in the decode flush."});
  table.Text("clip", "K,V", &a.clip,
             {"clip ratios of all schemes that clip",
              "Instead of an entry's own ratios and of the public 0.96,0.92."});
  table.Flag("as-served", &a.as_served,
             {"round rotations and rotated rows to bfloat16, as engines do",
              "Default: off. The kernels of --device cuda and twin always do."});
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
              "Default: the built-in copy of configs/verify/default.json, or of "
              "configs/verify/kernels.json on kernels, whose agreement with their CPU twins is a "
              "gate in any case."});
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

// "auto" is nothing.
std::optional<int64_t> Count(const char* option, const std::string& text, int64_t low,
                             int64_t high) {
  if (text == "auto") return std::nullopt;
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < low || value > high) {
    throw Error(ErrorCode::kUsage, std::string(option) + ": expected auto or a whole number from " +
                                       std::to_string(low) + " to " + std::to_string(high) +
                                       ", found '" + text + "'");
  }
  return value;
}

// Options that would have no effect without --model.
void CheckModelOptions(const VerifyArguments& a) {
  if (!a.model.empty()) return;
  const VerifyArguments unset;
  for (const auto& [option, given] :
       {std::pair{"--tokens", a.tokens != unset.tokens},
        {"--window", a.window != unset.window},
        {"--template", a.chat_template != unset.chat_template},
        {"--model-schemes", a.model_schemes != unset.model_schemes}}) {
    if (given) throw Error(ErrorCode::kUsage, std::string(option) + " needs --model");
  }
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
  table.Command("bench", "times of the kernels at model shapes");
  AddInputs(table, a);
  AddSchemes(table, a);
  AddVerdict(table, a);
  table.Example(
      "oscar-verify --model tests/golden/model_oracle/tiny/llama --text datasets/prose_heldout.txt "
      "--tokens 256 --window 128 --sink 4 --recent 16 --model-schemes bf16 naive",
      "baselines on a small model");
  table.Document("metrics.md", "what is measured");
  table.Document("quantiser.md", "the schemes");
  table.Document("formats/gates.md", "--gates");
  table.Document("formats/report.md", "--report and --json");
  table.Document("formats/trace.md", "the traces it reads");
  table.Document("formats/zoo.md", "the entries it reads");
  table.Document("formats/tokenizers.md", "text, chat and question files");
  table.Document("formats/output.md", "--selftest --json, errors");
  table.Document("cli/oscar-verify-bench.md", "times of the kernels: oscar-verify bench");
  return table;
}

namespace {

void CheckOutput(const std::filesystem::path& path, bool force) {
  namespace fs = std::filesystem;
  if (path.empty()) return;
  const auto refuse = [&](const char* why, const char* hint) {
    throw Error(ErrorCode::kIo, path.string() + why, hint);
  };
  RefuseSpecialFile(path);
  if (fs::is_directory(path)) refuse(" is a folder", "name a file");
  if (!force && fs::exists(path)) refuse(" exists", "use --force to replace it");
  if (path.has_parent_path() && !fs::is_directory(path.parent_path())) {
    refuse(": its folder does not exist", "make the folder first");
  }
}

}  // namespace

void CheckOutputs(const BenchArguments& arguments, const cli::CommonOptions& common) {
  RefuseInputsAsOutputs({common.config}, {arguments.report});
  CheckOutput(arguments.report, common.force);
}

void CheckOutputs(const VerifyArguments& arguments, const cli::CommonOptions& common) {
  namespace fs = std::filesystem;
  const auto resolved = [](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path));
  };
  if (!arguments.html.empty() && !arguments.report.empty() &&
      resolved(arguments.html) == resolved(arguments.report)) {
    throw Error(ErrorCode::kUsage, "--html and --report name the same file");
  }
  std::vector<fs::path> inputs = {common.config, arguments.model, arguments.gates};
  for (const auto* list : {&arguments.zoo, &arguments.traces, &arguments.text}) {
    inputs.insert(inputs.end(), list->begin(), list->end());
  }
  RefuseInputsAsOutputs(inputs, {arguments.html, arguments.report});
  for (const std::string& file : {arguments.html, arguments.report}) {
    CheckOutput(file, common.force);
  }
}

VerifyOptions ToOptions(const VerifyArguments& a) {
  CheckModelOptions(a);
  VerifyOptions o;
  o.zoo.assign(a.zoo.begin(), a.zoo.end());
  o.traces.traces.assign(a.traces.begin(), a.traces.end());
  o.traces.schemes = Names(a.schemes);
  o.served.sink = Count("--sink", a.sink, 0, kMany);
  o.served.recent = Count("--recent", a.recent, 0, kMany);
  o.served.group_size = Count("--group-size", a.group_size, 0, 1 << 16);
  o.served.scale_type = ScaleTypeFromName(a.scale_dtype);
  o.served.flush = Count("--flush", a.flush, 1, kMany);
  o.traces.method.use_windows = a.windows == "on";
  o.traces.method.clip_mode = a.clip_mode == "bisect" ? ClipMode::kBisect : ClipMode::kSort;
  o.traces.method.as_served = a.as_served;
  ParseClip(a.clip, o.traces.method);
  o.traces.positions = a.positions;
  o.traces.seed = static_cast<uint64_t>(a.seed);
  o.traces.controls = a.controls;
  o.traces.allow_overlap = a.allow_overlap;
  o.traces.gates = a.gates;
  o.traces.device = a.device;
  o.model.model = a.model;
  o.model.text.assign(a.text.begin(), a.text.end());
  o.model.chat_template = a.chat_template;
  o.model.tokens = a.tokens;
  o.model.window = a.window;
  o.model.device = a.device;
  o.model.schemes = Names(a.model_schemes);
  return o;
}

namespace {

// "8192" or "8K" or "1M", not below `low`.
int64_t ParseCount(const char* option, const std::string& text, int64_t low) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const std::string unit(parsed.ptr, end);
  const int shift = unit == "K" ? 10 : unit == "M" ? 20 : 0;
  constexpr int64_t kLargest = int64_t{1} << 30;
  if (parsed.ec != std::errc() || (shift == 0 && !unit.empty()) || value < low ||
      value > kLargest >> shift) {
    throw Error(ErrorCode::kUsage, std::string(option) + ": expected a whole number from " +
                                       std::to_string(low) + " to 1024M, such as 100K, found '" +
                                       text + "'");
  }
  return value << shift;
}

std::vector<int64_t> Counts(const char* option, const std::vector<std::string>& given) {
  std::vector<int64_t> counts;
  for (const std::string& text : Names(given)) counts.push_back(ParseCount(option, text, 1));
  return counts;
}

void AddShapes(cli::OptionTable& table, BenchArguments& a) {
  table.Section("Shapes");
  table.List("shape", "NAME", &a.shapes,
             {"model shapes (default qwen3-4b)", "qwen3-4b, qwen3-8b, qwen3-32b, glm-4.7."});
  table.Int("q-heads", "N", &a.q_heads, 0, 1 << 16,
            {"query heads of an explicit shape of attention",
             "With --kv-heads and --head-dim, instead of --shape."});
  table.Int("kv-heads", "N", &a.kv_heads, 0, 1 << 16, {"its KV heads", ""});
  table.Int("head-dim", "N", &a.head_dim, 0, 1 << 16, {"its channels per head", ""});
  table.Int("group-size", "N", &a.group_size, 0, 1 << 16,
            {"channels that share scale and zero", "0: the whole head."});
  table.Choice("scale-dtype", &a.scale_dtype, {"f32", "f16", "bf16"},
               {"type in which scale and zero are stored", ""});
}

void AddGrid(cli::OptionTable& table, BenchArguments& a) {
  table.Section("Decode attention of one layer");
  table.List("batch", "N", &a.batches, {"requests of a batch (default 1 8 32)", ""});
  table.List("context", "N", &a.contexts,
             {"tokens of each request (default 8K 32K 100K)", "K is 1024, M 1024 K."});
  table.List("order", "NAME", &a.orders,
             {"order of the 8-slot pages: random, sequential (default both)", ""});
  table.Choice("windows", &a.windows, {"on", "off"},
               {"whether each request has sink and recent tokens in bf16", ""});
  table.Int("sink", "N", &a.sink, 0, kMany, {"first tokens kept in 16 bits with --windows on", ""});
  table.Int("recent", "N", &a.recent, 0, kMany,
            {"newest tokens kept in 16 bits with --windows on", ""});
  table.Flag("sdpa", &a.sdpa,
             {"measure PyTorch's attention beside it",
              "Flash and cuDNN, on a contiguous cache. "
              "Needs the CUDA part of LibTorch."});
  table.Text("write-tokens", "N", &a.write_tokens,
             {"tokens of the prefill chunk whose cache write is measured",
              "Beside the write of a decode step of each --batch; 0: no writes."});
  table.Flag("grid", &a.grid, {"measure these tables", "--no-grid: --whole-model only."});
}

void AddWholeModel(cli::OptionTable& table, BenchArguments& a) {
  table.Section("Whole models");
  table.Flag("whole-model", &a.whole_model,
             {"measure decode steps of whole models",
              "All layers' attention and matrix products "
              "in one CUDA graph, at each --batch and at "
              "the largest batch that fits. Needs a build "
              "with -DOSCAR_TORCH_CUDA=ON."});
  table.List("step-context", "N", &a.step_contexts,
             {"contexts of capacity and decode steps (default 30K 60K 100K 128K)", ""});
  table.Real("memory-fraction", "X", &a.memory_fraction, 0.01, 1,
             {"share of the device's memory for weights and caches", ""});
}

// Options that would have no effect without windows.
void CheckWindowOptions(const BenchArguments& a) {
  if (a.windows == "on") return;
  const BenchArguments unset;
  for (const auto& [option, given] :
       {std::pair{"--sink", a.sink != unset.sink}, {"--recent", a.recent != unset.recent}}) {
    if (given) throw Error(ErrorCode::kUsage, std::string(option) + " needs --windows on");
  }
}

DType TypeOf(const std::string& name) {
  return name == "f16" ? DType::kF16 : name == "bf16" ? DType::kBF16 : DType::kF32;
}

}  // namespace

cli::OptionTable BenchTable(BenchArguments& a) {
  cli::OptionTable table("oscar-verify bench",
                         "times the INT2 decode kernels at model shapes, beside BF16 kernels");
  table.GivesNoVerdict();
  AddShapes(table, a);
  AddGrid(table, a);
  AddWholeModel(table, a);
  table.Section("Device and output");
  table.Text("device", "DEVICE", &a.device, {"cuda or cuda:<i>, a Hopper GPU", ""});
  table.Text("report", "FILE", &a.report, {"write the record of --json to a file", ""});
  table.Document("formats/bench.md", "--report and --json");
  table.Document("cuda.md", "the kernels");
  return table;
}

BenchOptions ToOptions(const BenchArguments& a) {
  CheckWindowOptions(a);
  BenchOptions o;
  const bool heads = a.q_heads > 0 || a.kv_heads > 0 || a.head_dim > 0;
  if (heads || !a.shapes.empty()) o.models = Names(a.shapes);
  o.q_heads = a.q_heads;
  o.kv_heads = a.kv_heads;
  o.head_dim = a.head_dim;
  o.batches = Counts("--batch", a.batches);
  o.contexts = Counts("--context", a.contexts);
  o.step_contexts = Counts("--step-context", a.step_contexts);
  o.orders = Names(a.orders);
  o.write_tokens = ParseCount("--write-tokens", a.write_tokens, 0);
  o.use_windows = a.windows == "on";
  o.windows = {a.sink, a.recent};
  o.group_size = a.group_size;
  o.scale_type = TypeOf(a.scale_dtype);
  o.sdpa = a.sdpa;
  o.whole_model = a.whole_model;
  o.grid = a.grid;
  o.memory_fraction = a.memory_fraction;
  return o;
}

}  // namespace oscar
