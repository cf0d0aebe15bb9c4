// An import: layer by layer, the sequences of an official dump folder go through the observer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "oscar/core/error.h"
#include "oscar/dump/estimate.h"
#include "oscar/dump/import_plan.h"
#include "oscar/dump/import_rows.h"
#include "oscar/dump/import_survey.h"
#include "oscar/dump/manifest.h"
#include "oscar/dump/runs.h"
#include "oscar/dump/sequences.h"
#include "oscar/model/observer.h"

namespace oscar {
namespace {

ImportRules RulesOf(const DumpOptions& options) {
  ImportRules rules;
  rules.warmup = options.skip_warmup == "yes"  ? ImportRules::Warmup::kYes
                 : options.skip_warmup == "no" ? ImportRules::Warmup::kNo
                                               : ImportRules::Warmup::kAuto;
  const auto number = [](const std::string& text, const char* option) -> int64_t {
    if (text == "auto") return -1;
    if (text == "none") return 0;
    const bool digits = !text.empty() && text.size() <= 12 && text.front() != '0' &&
                        text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--{} {}: expected auto, none or a number of tokens", option, text));
    }
    return std::stoll(text);
  };
  rules.prefill_chunk = number(options.prefill_chunk, "prefill-chunk");
  rules.dump_budget = number(options.dump_budget, "dump-budget");
  std::filesystem::path folder = options.import_dir.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  rules.tag_budget = BudgetFromFolderName(folder.filename().string());
  return rules;
}

Value DescribeImport(const ImportPlan& plan, const ImportSurvey& survey) {
  Value value;
  Value::Array used, skipped, notes;
  for (const ImportChunk& chunk : plan.chunks) used.push_back(chunk.id);
  for (const int64_t id : plan.skipped) skipped.push_back(id);
  for (const std::string& note : plan.notes) notes.push_back(note);
  value["chunks"] = std::move(used);
  value["skipped_chunks"] = std::move(skipped);
  value["prefill_chunk"] = plan.prefill_chunk;
  value["notes"] = std::move(notes);
  value["layers_found"] = survey.layers_found;
  return value;
}

TraceHeader MakeHeader(const DumpOptions& options, const RunContext& context,
                       const ImportSurvey& survey, const ImportPlan& plan) {
  TraceHeader header;
  for (const ImportSequence& s : plan.sequences) {
    TraceSequence sequence;
    sequence.length = s.length();
    sequence.complete = s.complete;
    header.sequences.push_back(sequence);
  }
  ApplyTokenBudget(header.sequences, 0);
  ApplyRowBudget(header.sequences, options.rows_tokens);
  header.layers = survey.layers;
  Value& m = header.manifest;
  m["source"] = "import";
  Value::Array files;
  for (const auto& [layer, hash] : survey.fingerprints) {
    files.push_back(Value::Object{{"name", fmt::format("layer_{}", layer)}, {"fingerprint", hash}});
  }
  m["files"] = std::move(files);
  m["import"] = DescribeImport(plan, survey);
  m["model_id"] = options.model_id;
  for (const char* key : {"architecture", "config_hash", "weights_fingerprint", "tokenizer_hash"}) {
    m[key] = "";
  }
  m["template"] = "unknown";
  m["window"] = 0;
  m["rope"] = "unknown";
  m["dtype"] = DTypeName(survey.dtype);
  m["device"] = "cpu";
  DescribeRun(options, context, header);
  m["bos"] = "unknown";
  return header;
}

void WarnAboutStrangers(const ImportSurvey& survey, const RunContext& context, DumpResult& result) {
  if (survey.ignored.empty()) return;
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(kNamed, survey.ignored.size()); ++i) {
    const std::filesystem::path name = survey.ignored[i].lexically_relative(survey.folder);
    names += (i == 0 ? "" : ", ") + name.string();
  }
  if (survey.ignored.size() > kNamed) {
    names += fmt::format(" and {} more", survey.ignored.size() - kNamed);
  }
  result.notes.push_back(
      fmt::format("{}: ignored what is no part of a dump: {}", survey.folder.string(), names));
  context.progress->Warn(result.notes.back());
}

// q, k, v of one chunk, loaded when its first piece is needed.
struct LoadedChunk {
  size_t index;
  ChunkRows q, k, v;
};

// Feeds the sequences of one layer to an observer.
class LayerImport {
 public:
  LayerImport(const ImportSurvey& survey, const ImportPlan& plan, int layer)
      : survey_(survey), plan_(plan), layer_(layer), shape_(survey.shapes.at(layer)) {}

  LayerCapture Run(const CaptureSpec& spec, const RunContext& context) {
    RowObserver observer(layer_, shape_, spec, context.threads);
    for (const ImportSequence& sequence : plan_.sequences) {
      context.cancel->ThrowIfCancelled("");
      Add(sequence, observer);
    }
    return observer.Finish();
  }

  bool rounded() const { return rounded_; }

 private:
  const LoadedChunk& Load(size_t index) {
    if (chunk_ && chunk_->index == index) return *chunk_;
    chunk_.reset();  // the old chunk's memory goes before the new one's comes
    const ImportChunk& chunk = plan_.chunks[index];
    chunk_.emplace(LoadedChunk{index, ChunkRows(survey_, layer_, "q", shape_.q_heads, chunk),
                               ChunkRows(survey_, layer_, "k", shape_.kv_heads, chunk),
                               ChunkRows(survey_, layer_, "v", shape_.kv_heads, chunk)});
    rounded_ = rounded_ || chunk_->q.rounded() || chunk_->k.rounded() || chunk_->v.rounded();
    return *chunk_;
  }

  void Add(const ImportSequence& sequence, RowObserver& observer) {
    if (sequence.pieces.size() == 1) {
      const ImportPiece& piece = sequence.pieces.front();
      const LoadedChunk& chunk = Load(piece.chunk);
      observer.AddSequence(chunk.q.rows().Slice(piece.begin, piece.end),
                           chunk.k.rows().Slice(piece.begin, piece.end),
                           chunk.v.rows().Slice(piece.begin, piece.end));
      return;
    }
    // A prompt split over chunks: its rows are brought together.
    std::array<std::vector<BFloat16>, 3> rows;
    for (const ImportPiece& piece : sequence.pieces) {
      const LoadedChunk& chunk = Load(piece.chunk);
      const ChunkRows* parts[] = {&chunk.q, &chunk.k, &chunk.v};
      for (size_t p = 0; p < 3; ++p) {
        const HeadRows<const BFloat16> slice = parts[p]->rows().Slice(piece.begin, piece.end);
        rows[p].insert(rows[p].end(), slice.data, slice.data + slice.size());
      }
    }
    const int64_t tokens = sequence.length();
    observer.AddSequence({rows[0].data(), tokens, shape_.q_heads, shape_.k_dim},
                         {rows[1].data(), tokens, shape_.kv_heads, shape_.k_dim},
                         {rows[2].data(), tokens, shape_.kv_heads, shape_.v_dim});
  }

  const ImportSurvey& survey_;
  const ImportPlan& plan_;
  int layer_;
  LayerShape shape_;
  std::optional<LoadedChunk> chunk_;
  bool rounded_ = false;
};

}  // namespace

DumpResult RunImport(const DumpOptions& options, const RunContext& context) {
  const ImportRules rules = RulesOf(options);
  const ImportSurvey survey = SurveyDump(options.import_dir, options.layers, options.q_heads,
                                         options.kv_heads, options.softmax_scale);
  ImportPlan plan = PlanImport(survey.chunks, rules);
  LimitTokens(plan, options.tokens);
  const TraceHeader header = MakeHeader(options, context, survey, plan);
  DumpResult result = ResultOf(options, header);
  result.model_layers = survey.layers_found;
  result.notes.insert(result.notes.begin(), plan.notes.begin(), plan.notes.end());
  Tell(context, result.notes);
  WarnAboutStrangers(survey, context, result);
  WarnAboutPacking(survey.shapes, context, result);
  const CaptureSpec spec = SpecOf(options, result.row_sequences);
  if (options.dry_run) {
    result.estimate = EstimateImport(survey, spec, header, context);
    return result;
  }
  TraceWriter writer(options.out, header, options.resume, options.force);
  result.was_complete = writer.finished();
  context.progress->Begin("import", static_cast<int64_t>(header.layers.size()), "layers");
  bool rounded = false;
  for (const int layer : header.layers) {
    if (!writer.HasLayer(layer)) {
      LayerImport import(survey, plan, layer);
      const LayerCapture capture = import.Run(spec, context);
      Resumable(options, [&] { writer.WriteLayer(capture); });
      rounded = rounded || import.rounded();
    }
    context.progress->Advance(1);
  }
  context.progress->End();
  if (rounded) {
    result.notes.push_back(
        fmt::format("the dump's {} rows were rounded to bf16", DTypeName(survey.dtype)));
    context.progress->Warn(result.notes.back());
  }
  Resumable(options, [&] { writer.Finish(); });
  return result;
}

}  // namespace oscar
