#include "oscar/dump/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "oscar/core/error.h"
#include "oscar/core/outputs.h"
#include "oscar/core/printable.h"
#include "oscar/dump/manifest.h"
#include "oscar/dump/runs.h"

namespace oscar {
namespace {

void RequireUsage(bool fine, const std::string& message, const std::string& hint = "") {
  if (!fine) throw Error(ErrorCode::kUsage, message, hint);
}

void CheckOptions(const DumpOptions& o) {
  RequireUsage(!o.model.empty() || !o.import_dir.empty(), "give either --model or --import");
  RequireUsage(o.model.empty() || o.import_dir.empty(), "give --model or --import, not both");
  RequireUsage(!o.out.empty() || o.dry_run, "--out is missing");
  std::vector<std::filesystem::path> inputs = {o.model, o.token_ids, o.import_dir};
  inputs.insert(inputs.end(), o.text.begin(), o.text.end());
  if (!o.out.empty() && !std::filesystem::is_directory(o.out)) {
    RefuseInputsAsOutputs(inputs, {o.out, o.out.string() + ".part"});
  }
  RequireUsage(o.tokens >= 0 && o.rows_tokens >= 0, "token counts cannot be negative");
  ParseMomentList(o.moments);
  if (!o.model.empty()) {
    RequireUsage(!o.text.empty() || !o.token_ids.empty(),
                 "--model needs either --text or --token-ids");
    RequireUsage(o.text.empty() || o.token_ids.empty(), "give --text or --token-ids, not both");
    RequireUsage(o.window > 0, "--window must be positive");
    RequireUsage(o.q_heads == 0 && o.kv_heads == 0 && o.softmax_scale == 0,
                 "--q-heads, --kv-heads and --softmax-scale belong to --import",
                 "a model's own configuration is used with --model");
    return;
  }
  RequireUsage(o.text.empty() && o.token_ids.empty(),
               "--text and --token-ids belong to --model, not to --import");
  RequireUsage(o.q_heads > 0 && o.kv_heads > 0, "--import needs --q-heads and --kv-heads",
               "a dump does not say how many heads the model has, and nothing is guessed");
  RequireUsage(o.q_heads % o.kv_heads == 0,
               fmt::format("--q-heads {} is no multiple of --kv-heads {}", o.q_heads, o.kv_heads));
  RequireUsage(o.softmax_scale >= 0, "--softmax-scale must be positive");
  RequireUsage(o.device == "cpu", "--import runs on the CPU");
}

std::string Bytes(int64_t bytes) {
  if (bytes >= (int64_t{1} << 30)) {
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  }
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string Seconds(double seconds) {
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

// How to name the thing that was dumped.
std::string SourceText(const DumpResult& result) {
  const std::string& id = result.manifest.At("model_id").AsString();
  if (result.manifest.At("source").AsString() != "import") {
    return fmt::format("{} ({})", id, result.manifest.At("architecture").AsString());
  }
  return id.empty() ? "official dump" : fmt::format("official dump of {}", id);
}

// What the run itself would refuse, or nothing.
std::string ObstacleTo(const DumpOptions& options) {
  if (options.out.empty() || options.force || options.resume) return "";
  const std::string out = options.out.string();
  if (std::filesystem::exists(options.out)) return out + " exists already: the run needs --force";
  if (std::filesystem::exists(out + ".part")) {
    return out + ".part holds an unfinished run: the run needs --resume or --force";
  }
  return "";
}

}  // namespace

CaptureSpec SpecOf(const DumpOptions& options, int64_t row_sequences) {
  return {ParseMomentList(options.moments), row_sequences};
}

DumpResult ResultOf(const DumpOptions& options, const TraceHeader& header) {
  DumpResult result;
  result.path = options.out;
  result.tokens_asked =
      options.tokens > 0 || options.text.empty() ? options.tokens : kDefaultTextTokens;
  result.dry_run = options.dry_run;
  result.layers = static_cast<int64_t>(header.layers.size());
  result.sequences = static_cast<int64_t>(header.sequences.size());
  result.manifest = header.manifest;
  for (const TraceSequence& s : header.sequences) {
    result.tokens += s.length;
    result.incomplete_sequences += s.complete ? 0 : 1;
    result.row_sequences += s.has_rows ? 1 : 0;
    result.row_tokens += s.has_rows ? s.length : 0;
  }
  if (result.row_sequences == 0 && options.rows_tokens > 0) {
    result.notes.push_back(fmt::format(
        "no rows are kept: no complete sequence fits into --rows-tokens {} (the first has "
        "{} tokens)",
        options.rows_tokens, header.sequences.front().length));
  }
  return result;
}

void WarnAboutPacking(const std::map<int, LayerShape>& shapes, const RunContext& context,
                      DumpResult& result) {
  for (const auto& [layer, shape] : shapes) {
    for (const bool key : {true, false}) {
      const int64_t dim = key ? shape.k_dim : shape.v_dim;
      if (dim % kChannelsPerByte == 0) continue;
      result.notes.push_back(
          fmt::format("layer {}: head dim {} of {} is no multiple of {} and cannot be packed in 2 "
                      "bits; oscar-calibrate and oscar-verify refuse such traces",
                      layer, dim, key ? "keys" : "values", kChannelsPerByte));
      context.progress->Warn(result.notes.back());
      return;  // layers of one model are alike
    }
  }
}

void Resumable(const DumpOptions& options, const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo || !error.hint().empty()) throw;
    throw Error(
        ErrorCode::kIo, error.what(),
        fmt::format("finished layers are in {}.part: remove the cause, a full disk say, then "
                    "continue with the same command and --resume",
                    options.out.string()));
  }
}

void Tell(const RunContext& context, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) context.progress->Info(note);
}

DumpResult RunDump(const DumpOptions& options, const RunContext& context) {
  CheckOptions(options);
  const auto begin = std::chrono::steady_clock::now();
  DumpResult result;
  try {
    result =
        options.import_dir.empty() ? RunModelDump(options, context) : RunImport(options, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInterrupted || options.dry_run) throw;
    throw Error(ErrorCode::kInterrupted,
                fmt::format("interrupted; finished layers are in {}.part", options.out.string()),
                "continue with the same command and --resume");
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (options.dry_run) {
    result.obstacle = ObstacleTo(options);
  } else {
    result.bytes = static_cast<int64_t>(std::filesystem::file_size(options.out));
  }
  return result;
}

std::string DumpText(const DumpResult& r) {
  std::string text = r.dry_run ? "dry run: nothing was written\n" : r.path.string() + "\n";
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<10} {}\n", name, value);
  };
  line("source", SourceText(r));
  line("layers", fmt::format("{} of {}", r.layers, r.model_layers));
  line("tokens",
       fmt::format(
           "{} in {}{}{}", r.tokens, Counted(r.sequences, "sequence"),
           r.incomplete_sequences > 0 ? fmt::format(", {} incomplete", r.incomplete_sequences) : "",
           r.tokens < r.tokens_asked ? fmt::format(", {} asked for", r.tokens_asked) : ""));
  line("rows", fmt::format("{} of {}", Counted(r.row_tokens, "token"),
                           Counted(r.row_sequences, "sequence")));
  std::string moments;
  for (const Value& name : r.manifest.At("moments").AsArray()) {
    moments += (moments.empty() ? "" : " ") + name.AsString();
  }
  line("moments", moments);
  if (r.dry_run) {
    line("memory", Bytes(r.estimate.memory_bytes) + " at most, estimated");
    line("disk", fmt::format("{}, and {} more while running", Bytes(r.estimate.trace_bytes),
                             Bytes(r.estimate.scratch_bytes)));
    line("time",
         fmt::format("{}, estimated: {}", Seconds(r.estimate.seconds), r.estimate.time_basis));
    if (!r.obstacle.empty()) line("output", r.obstacle);
  } else {
    line("size", Bytes(r.bytes));
    line("time", r.was_complete ? "the trace was complete already" : Seconds(r.seconds));
  }
  return text;
}

Value DumpJson(const DumpResult& r) {
  Value json;
  json["schema"] = "oscar.dump/1";
  json["path"] = r.dry_run ? "" : r.path.string();
  json["dry_run"] = r.dry_run;
  json["was_complete"] = r.was_complete;
  json["layers"] = r.layers;
  json["model_layers"] = r.model_layers;
  json["tokens"] = r.tokens;
  json["tokens_asked"] = r.tokens_asked > 0 ? Value(r.tokens_asked) : Value();
  json["sequences"] = r.sequences;
  json["incomplete_sequences"] = r.incomplete_sequences;
  json["row_sequences"] = r.row_sequences;
  json["row_tokens"] = r.row_tokens;
  json["manifest"] = r.manifest;
  Value::Array notes;
  for (const std::string& note : r.notes) notes.push_back(note);
  json["notes"] = std::move(notes);
  if (r.dry_run) {
    json["estimate"] = Value::Object{{"memory_bytes", r.estimate.memory_bytes},
                                     {"trace_bytes", r.estimate.trace_bytes},
                                     {"scratch_bytes", r.estimate.scratch_bytes},
                                     {"seconds", r.estimate.seconds},
                                     {"time_basis", r.estimate.time_basis}};
    json["obstacle"] = r.obstacle.empty() ? Value() : Value(r.obstacle);
  } else {
    json["bytes"] = r.bytes;
  }
  json["volatile"] = DescribeMoment(r.seconds);
  return json;
}

}  // namespace oscar
