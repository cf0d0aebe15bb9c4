#include "oscar_zoo/options.h"

#include <fmt/format.h>

#include "oscar/core/error.h"

namespace oscar {

cli::OptionTable MakeZooTable(ZooOptions& options) {
  cli::OptionTable table("oscar-zoo", "Looks at rotation files and rotation zoo folders.");
  table.WritesNothing();
  table.Positional("COMMAND FILE|DIR...", &options.words,
                   {"what to do, then rotation files or zoo folders",
                    "show: what a file or folder holds. validate: checks files and folders, exit "
                    "code 1 when one is not valid. env: settings of a serving engine for one "
                    "folder. diff: whether two files or two folders mean the same, exit code 1 "
                    "when rotations or, in two folders with manifests, settings of the cache "
                    "are different."});
  table.Section("Provenance");
  table.List("traces", "F.trace.h5", &options.traces,
             {"validate: traces that the rotations should come from",
              "Recovers the eigenvectors from each rotation and checks that they diagonalise the "
              "traces' second moment with the stored eigenvalues. Several traces of one model are "
              "added up."});
  table.Section("Engines");
  table.Choice("engine", &options.engine, InspectEngines(),
               {"env: the serving engine",
                "Only sglang has settings that are certain; for the "
                "others the program says why it gives none."});
  table.Flag("absorb-v", &options.absorb_v,
             {"env: fold the V rotation into v_proj",
              "Saves one product while serving; right for the models whose loader does it (Qwen3, "
              "GLM-4-MoE), wrong for all others. Default: off."});
  table.Example("oscar-zoo show rotation_zoo/SmolLM2-135M-Instruct/seq16384_prompt8_group64",
                "what the entry holds, layer by layer");
  table.Example(
      "oscar-zoo env rotation_zoo/SmolLM2-135M-Instruct/seq16384_prompt8_group64 --engine sglang",
      "shell lines that set the engine's variables");
  table.Example("oscar-zoo validate tests/golden/zoo_samples/Qwen3-4B-Thinking-2507",
                "whether a folder of another producer can be served");
  table.Example(
      "oscar-zoo diff tests/golden/zoo_samples/Qwen3.5-4B/hadamard "
      "tests/golden/zoo_samples/Qwen3.5-4B/calibrated",
      "whether two folders mean the same (these two do not)");
  table.Document("formats/zoo.md", "rotation files and folders");
  table.Document("formats/zoo-manifest.md", "manifest.json");
  table.Document("formats/zoo-report.md", "what --json holds, verdicts of diff, provenance");
  table.Document("formats/torchfile.md", "how .pt files are read");
  return table;
}

InspectOptions ToInspectOptions(const ZooOptions& options) {
  if (options.words.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("no command; known: {}", fmt::join(InspectCommands(), ", ")),
                "oscar-zoo --help shows examples");
  }
  InspectOptions inspect;
  inspect.command = options.words.front();
  inspect.inputs.assign(options.words.begin() + 1, options.words.end());
  inspect.traces.assign(options.traces.begin(), options.traces.end());
  inspect.engine = options.engine;
  inspect.absorb_v = options.absorb_v;
  return inspect;
}

}  // namespace oscar
