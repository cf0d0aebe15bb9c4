#include "oscar_dump/options.h"

#include <limits>

namespace oscar {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;

void AddModelOptions(cli::OptionTable& table, DumpArguments& a) {
  table.Section("A model and text");
  table.Text(
      "model", "PATH", &a.model,
      {"Hugging Face folder or GGUF file",
       "config.json with safetensors, or one .gguf file. Memory-mapped; one layer is resident "
       "at a time."});
  table.List(
      "text", "FILE", &a.text,
      {"text to run the model on",
       ".txt (documents separated by a line of ---), .jsonl (text or messages), .csv or .jsonl "
       "of multiple-choice questions with MMLU or GPQA columns. Documents are packed in "
       "order, separated by EOS; those of several files are interleaved evenly."});
  table.Text("token-ids", "FILE", &a.token_ids,
             {"token ids instead of text",
              "One sequence a line, a JSON array of arrays, or HDF5 with a dataset token_ids or "
              "input_ids (1-D or 2-D). Sequences are run as they are."});
  table.Choice("template", &a.chat_template, {"auto", "none", "chatml", "smollm2", "llama3"},
               {"chat template for messages and questions",
                "auto recognises the model's own template text and is refused when it does not."});
  table.Int(
      "window", "N", &a.window, 1, kMostTokens,
      {"tokens of one sequence of packed text", "Full causal attention inside each sequence."});
  table.Text("device", "DEVICE", &a.device, {"cpu, cuda or cuda:<i>", "Where the model runs."});
  table.Int("seed", "N", &a.seed, 0, std::numeric_limits<int64_t>::max(),
            {"shuffles the choices of GPQA questions", "Kept in the manifest."});
}

void AddImportOptions(cli::OptionTable& table, DumpArguments& a) {
  table.Section("A folder of official dumps");
  table.Text(
      "import", "DIR", &a.import_dir,
      {"folder with layer_<L>/{q,k,v,seq_lens}/<chunk>.pt",
       "Tensors may be [T, H, D], [T, H*D] or [1, H, T, D], in bf16, f16 or f32; rows beyond the "
       "sum of seq_lens are ignored."});
  table.Int("q-heads", "N", &a.q_heads, 0, 1 << 14,
            {"query heads of the model", "Needed with --import; nothing is guessed from sizes."});
  table.Int("kv-heads", "N", &a.kv_heads, 0, 1 << 14,
            {"key-value heads of the model", "Needed with --import."});
  table.Choice("skip-warmup", &a.skip_warmup, {"auto", "yes", "no"},
               {"whether chunk 0 is the server's warm-up request",
                "auto: when it is one sequence of at most 16 tokens and other chunks follow."});
  table.Text(
      "prefill-chunk", "N", &a.prefill_chunk,
      {"tokens of a full prefill chunk, behind which a prompt goes on in the next chunk",
       "auto: 4096, or the largest chunk when that is a larger power of two. none: prompts are "
       "never split."});
  table.Text(
      "dump-budget", "N", &a.dump_budget,
      {"token budget that ended the dump and cut its last sequence",
       "auto: from a folder name like seq20000_prompt83_group128, else a dump of 100 tokens or a "
       "multiple of 1000 (warm-up included) is taken to be cut. none: it ended by itself."});
  table.Real("softmax-scale", "X", &a.softmax_scale, 0, 1e6,
             {"scale of the logits", "0: 1 / sqrt(head dim)."});
}

void AddCaptureOptions(cli::OptionTable& table, DumpArguments& a) {
  table.Section("What is captured");
  table.Int("tokens", "N", &a.tokens, 0, kMostTokens,
            {"tokens in all", "0: 16384 of text, everything of token ids and imports."});
  table.Int("rows-tokens", "N", &a.rows_tokens, 0, kMostTokens,
            {"keep q, k, v rows of the first whole sequences up to so many tokens",
             "Clip search and verification need rows; moments always cover every token."});
  table.Text(
      "moments", "LIST", &a.moments,
      {"second moments to sum",
       "all, or a list of qq, kk, vv, oo, sst, sst_weight, q_sum, k_sum, v_sum; sst brings qq and "
       "sst_weight with it."});
  table.Text("layers", "LIST", &a.layers,
             {"layers to capture, such as 0-3,7",
              "Empty: all. A model still runs every layer up to the last one captured."});
}

void AddOutputOptions(cli::OptionTable& table, DumpArguments& a) {
  table.Section("Output");
  table.Text("model-id", "NAME", &a.model_id,
             {"name of the model in the manifest",
              "Empty: what the model's files say; a dump folder says nothing."});
  table.Text(
      "out", "FILE", &a.out,
      {"trace file to write, F.trace.h5", "FILE.part/ holds the work of an unfinished run."});
  table.Short("o");
  table.Flag(
      "resume", &a.resume,
      {"continue an interrupted run",
       "Goes on behind the last finished layer when all options agree, and says what differs "
       "otherwise; the result has the bytes of an undisturbed run."});
  table.Flag("dry-run", &a.dry_run,
             {"check the inputs and print memory, disk and time estimates", "Writes nothing."});
}

}  // namespace

cli::OptionTable DumpTable(DumpArguments& a) {
  cli::OptionTable table("oscar-dump",
                         "second moments and rows of a model's queries, keys and values");
  table.GivesNoVerdict();
  AddModelOptions(table, a);
  AddImportOptions(table, a);
  AddCaptureOptions(table, a);
  AddOutputOptions(table, a);
  table.Example(
      "oscar-dump --model tests/golden/model_oracle/tiny/llama --text "
      "datasets/prose_calibration.txt "
      "--tokens 512 --window 128 --out tiny.trace.h5",
      "dump a small model on packed text");
  table.Example(
      "oscar-dump --import tests/golden/official_vectors/calibration/A1_d16/dump --q-heads 4 "
      "--kv-heads 2 --out imported.trace.h5",
      "import a folder that the official dump hook wrote");
  table.Document("formats/trace.md", "the file it writes");
  table.Document("formats/tokenizers.md", "text, chat, question and token-id files");
  table.Document("formats/model-weights.md", "models it reads");
  table.Document("import.md", "importing official dumps");
  table.Document("model-runner.md", "how a model is run");
  table.Document("formats/output.md", "what --json and errors hold");
  return table;
}

DumpOptions ToOptions(const DumpArguments& a, bool force) {
  DumpOptions o;
  o.model = a.model;
  o.text.assign(a.text.begin(), a.text.end());
  o.token_ids = a.token_ids;
  o.chat_template = a.chat_template;
  o.window = a.window;
  o.device = a.device;
  o.seed = static_cast<uint64_t>(a.seed);
  o.import_dir = a.import_dir;
  o.q_heads = a.q_heads;
  o.kv_heads = a.kv_heads;
  o.skip_warmup = a.skip_warmup;
  o.prefill_chunk = a.prefill_chunk;
  o.dump_budget = a.dump_budget;
  o.softmax_scale = a.softmax_scale;
  o.model_id = a.model_id;
  o.tokens = a.tokens;
  o.rows_tokens = a.rows_tokens;
  o.moments = a.moments;
  o.layers = a.layers;
  o.resume = a.resume;
  o.dry_run = a.dry_run;
  o.out = a.out;
  o.force = force;
  return o;
}

}  // namespace oscar
