#include "oscar_calibrate/options.h"

#include "oscar/rotation/composition.h"

namespace oscar {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;

std::vector<std::string> CompositionNames() {
  std::vector<std::string> names;
  for (const CompositionInfo& row : CompositionTable()) names.emplace_back(row.name);
  return names;
}

void AddInputs(cli::OptionTable& table, CalibrateArguments& a) {
  table.Section("Input and output");
  table.List(
      "traces", "FILE", &a.traces,
      {"calibration traces of one model",
       "Written by oscar-dump. The moments of several traces add up; a trace may hold some of "
       "the layers only."});
  table.Required();
  table.Text(
      "model-name", "NAME", &a.model_name,
      {"name of the model, kept in the manifest",
       "For example SmolLM2-135M-Instruct. The manifest also holds the identity found in the "
       "traces."});
  table.Required();
  table.Text("out", "DIR", &a.out,
             {"folder of the zoo entry",
              "For example rotation_zoo/<model>/<tag>. Gets the K file, the V file and "
              "manifest.json, all or nothing; --force replaces an existing folder."});
  table.Required();
  table.Short("o");
}

void AddRotations(cli::OptionTable& table, CalibrateArguments& a) {
  table.Section("Rotations");
  table.Choice("k-target", &a.key_target, {"qqt", "ktk", "none"},
               {"second moment whose eigenvectors rotate keys",
                "qqt: of queries (what an error in a key costs), ktk: of keys, none: the data-free "
                "Hadamard rotation."});
  table.Choice("v-target", &a.value_target, {"sst", "svsv", "vtv", "none"},
               {"second moment whose eigenvectors rotate values",
                "sst: of values weighted by scores, as the public code computes it; svsv: of "
                "attention outputs, exactly V^T S^T S V of the paper; vtv: of values; none: the "
                "data-free Hadamard rotation."});
  table.Choice("grouping", &a.grouping, {"layer", "head"},
               {"one rotation per layer or per KV head",
                "layer writes format_version 1, which all engines with an OSCAR port load; head "
                "writes format_version 2. The summary says which one the traces recommend."});
  table.Choice(
      "composition", &a.composition, CompositionNames(),
      {"how eigenvectors U, Hadamard H and bit reversal P combine",
       "plain U, pbr P, br UP, br_h128 UPH, r_h UH, h_pbr HP, h_r_pbr HUP, h_pbr_r HPU, "
       "r_h_pbr UHP (the public recipe), hadamard H without any target. A head dim that is "
       "no power of two gets a block Hadamard matrix."});
  table.Choice("signs", &a.signs, {"canonical", "solver"},
               {"signs of eigenvectors",
                "canonical: the largest entry is positive, so that equal traces give equal "
                "rotations on every machine; solver: as LAPACK leaves them."});
  table.Real("min-tokens-per-dim", "N", &a.min_tokens_per_dim, 0, 1e9,
             {"fewest tokens per channel of a head",
              "Fewer than N * head_dim tokens in a layer are refused; 0 switches the floor off. A "
              "target without full rank is refused in any case."});
}

void AddClip(cli::OptionTable& table, CalibrateArguments& a) {
  table.Section("Clipping and quantiser");
  table.Text(
      "clip", "HOW", &a.clip,
      {"clip ratios: search, off, or K,V",
       "search: per layer, keys by attention KL(p||p_hat) and values by the error of the "
       "attention output, on sequences whose rows the traces hold. K,V: fixed ratios for all "
       "layers; 0.96,0.92 is the public recipe."});
  table.Text("clip-grid", "LO:HI:STEP", &a.clip_grid,
             {"ratios that the search tries",
              "0 < LO <= HI <= 1. Ratio c clips a row at its floor(c * head_dim)-th smallest "
              "magnitude, counted from 0; 1 clips nothing."});
  table.Int("clip-sequences", "N", &a.clip_sequences, 1, kLargest,
            {"sequences used by the search", "Evenly spaced over the sequences with rows."});
  table.Int("clip-positions", "N", &a.clip_positions, 1, kLargest,
            {"query positions per sequence used by the search",
             "Evenly spaced over the positions at which some key is quantised."});
  table.Int(
      "sink", "N", &a.sink, 0, kLargest,
      {"first tokens of a sequence that stay exact", "Part of the window rule of the cache."});
  table.Int("recent", "N", &a.recent, 0, kLargest,
            {"newest tokens that stay exact", "The query's own position included."});
  table.Int("flush", "N", &a.flush, 1, kLargest,
            {"tokens that leave the recent window at a time",
             "Of the search. 8 is the public engine's ring, which keeps recent to recent + 7 "
             "tokens exact; 1: one by one."});
  table.Int("group-size", "N", &a.group_size, 0, kLargest,
            {"channels that share a scale and a zero", "0: one group per head."});
  table.Choice("scale-dtype", &a.scale_dtype, {"f32", "f16", "bf16"},
               {"type in which scale and zero are stored", "Used by the search and recorded."});
}

}  // namespace

cli::OptionTable CalibrateTable(CalibrateArguments& arguments) {
  cli::OptionTable table("oscar-calibrate",
                         "Fits rotations and clip ratios for a 2-bit KV cache from calibration "
                         "traces and writes a rotation zoo entry.");
  table.GivesNoVerdict();
  AddInputs(table, arguments);
  AddRotations(table, arguments);
  AddClip(table, arguments);
  table.Example(
      "oscar-calibrate --traces calibration.trace.h5 --model-name SmolLM2-135M-Instruct "
      "--out rotation_zoo/SmolLM2-135M-Instruct/mmlu16k",
      "rotations of the public recipe, clip ratios searched per layer");
  table.Example(
      "oscar-calibrate --traces calibration.trace.h5 --clip 0.96,0.92 --model-name "
      "SmolLM2-135M-Instruct --out rotation_zoo/SmolLM2-135M-Instruct/public",
      "the public recipe throughout");
  table.Document("calibration.md", "targets, compositions, gates and clip search");
  table.Document("formats/trace.md", "the files it reads");
  table.Document("formats/zoo.md", "the rotation files it writes");
  table.Document("formats/zoo-manifest.md", "manifest.json");
  table.Document("formats/output.md", "what --json and errors hold");
  return table;
}

CalibrateOptions ToOptions(const CalibrateArguments& a, bool force) {
  CalibrateOptions options;
  options.traces.assign(a.traces.begin(), a.traces.end());
  options.key_target = TargetOption(a.key_target, true);
  options.value_target = TargetOption(a.value_target, false);
  options.grouping = a.grouping == "head" ? Grouping::kHead : Grouping::kLayer;
  options.fit.composition = CompositionFromName(a.composition);
  options.fit.signs = a.signs == "solver" ? SignRule::kSolver : SignRule::kCanonical;
  options.fit.gates.min_tokens_per_dim = a.min_tokens_per_dim;
  options.clip = ClipOptions::FromText(a.clip);
  options.clip.grid = ClipGrid::FromText(a.clip_grid);
  options.clip.sequences = a.clip_sequences;
  options.clip.queries = a.clip_positions;
  options.windows = {a.sink, a.recent, a.flush};
  options.group_size = a.group_size;
  options.scale_type = ScaleTypeFromName(a.scale_dtype).value();  // the table has checked it
  options.model_name = a.model_name;
  options.out = a.out;
  options.force = force;
  return options;
}

}  // namespace oscar
