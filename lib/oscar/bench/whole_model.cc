#include "oscar/bench/whole_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "oscar/core/error.h"

namespace oscar {
namespace {

const char* NameOf(CacheFormat format) { return format == CacheFormat::kInt2 ? "int2" : "bf16"; }

constexpr CacheFormat kFormats[] = {CacheFormat::kBFloat16, CacheFormat::kInt2};

class Steps {
 public:
  Steps(const ModelShape& model, const DecodeShape& shape, const Windows& windows,
        BenchDevice& device)
      : model_(model), shape_(shape), windows_(windows), device_(device) {}

  Value Measure(CacheFormat format, int64_t batch, int64_t context) const {
    const StepCase c{model_, {shape_, format, batch, context, windows_, true}};
    const StepTimes t = device_.Step(c);
    const int64_t cache_bytes = model_.layers * c.attention.Bytes();
    const int64_t step_bytes = StepBytes(model_, shape_.cache, format, windows_, context, batch);
    const double read = device_.ReadBandwidth();
    return Value::Object{
        {"format", NameOf(format)},
        {"batch", batch},
        {"step_ms", t.step.median},
        {"step_ms_low", t.step.low},
        {"step_ms_high", t.step.high},
        {"gemm_ms", t.gemm.median},
        {"attention_ms", t.attention.median},
        // What neither graph holds: element-wise operations and gaps between launches.
        {"rest_ms", t.step.median - t.gemm.median - t.attention.median},
        {"tokens_per_second", 1000 * static_cast<double>(batch) / t.step.median},
        {"cache_bytes", cache_bytes},
        {"step_bytes", step_bytes},
        {"attention_over_bytes",
         1000 * t.attention.median * read / static_cast<double>(cache_bytes)},
        {"step_over_bytes", 1000 * t.step.median * read / static_cast<double>(step_bytes)}};
  }

  // Times of one context, by format and batch.
  using Table = std::map<std::pair<CacheFormat, int64_t>, Value>;

  // Speed at batch 1 and throughput at equal memory, beside what bytes alone would give.
  static void Compare(const Table& table, const std::map<CacheFormat, int64_t>& largest,
                      Value& entry) {
    const auto at = [&](CacheFormat format, int64_t batch) {
      const auto found = table.find({format, batch});
      return found == table.end() ? nullptr : &found->second;
    };
    const auto ratio = [](const Value& a, const Value& b, const char* key) {
      return a.At(key).AsDouble() / b.At(key).AsDouble();
    };
    const Value* const slow = at(CacheFormat::kBFloat16, 1);
    const Value* const fast = at(CacheFormat::kInt2, 1);
    if (slow != nullptr && fast != nullptr) {
      entry["speedup"] = Value::Object{{"measured", ratio(*slow, *fast, "step_ms")},
                                       {"by_bytes", ratio(*slow, *fast, "step_bytes")},
                                       {"paper", kPaperSpeedup}};
    }
    const Value* const few = at(CacheFormat::kBFloat16, largest.at(CacheFormat::kBFloat16));
    const Value* const many = at(CacheFormat::kInt2, largest.at(CacheFormat::kInt2));
    if (few == nullptr || many == nullptr) return;
    const double batches = ratio(*many, *few, "batch");
    entry["throughput"] = Value::Object{{"bf16_batch", few->At("batch")},
                                        {"int2_batch", many->At("batch")},
                                        {"measured", ratio(*many, *few, "tokens_per_second")},
                                        {"by_bytes", batches / ratio(*many, *few, "step_bytes")},
                                        {"paper", kPaperThroughputRatio}};
  }

 private:
  const ModelShape& model_;
  const DecodeShape& shape_;
  const Windows& windows_;
  BenchDevice& device_;
};

// Batches of one format at one context: those asked for that fit, and the largest that does.
std::set<int64_t> BatchesThatFit(const std::vector<int64_t>& batches, int64_t largest) {
  std::set<int64_t> fit;
  for (const int64_t batch : batches) {
    if (batch <= largest) fit.insert(batch);
  }
  if (largest > 0) fit.insert(largest);
  return fit;
}

void NoteBatches(const ModelShape& model, CacheFormat format, const std::vector<int64_t>& batches,
                 int64_t context, int64_t largest, Value::Array& notes) {
  for (const int64_t batch : batches) {
    if (batch <= largest) continue;
    notes.push_back(model.name + ": " + NameOf(format) + " caches of " + std::to_string(batch) +
                    " requests of " + std::to_string(context) +
                    " tokens do not fit beside the weights, " + std::to_string(largest) + " do");
  }
}

}  // namespace

Value::Array CapacityTable(const ModelShape& model, const CacheShape& shape, const Windows& windows,
                           const std::vector<int64_t>& contexts, const MemoryBudget& budget) {
  Value::Array table;
  for (const int64_t tokens : contexts) {
    Value row = Value::Object{{"context", tokens}};
    for (const CacheFormat format : kFormats) {
      row[NameOf(format)] = RequestsThatFit(model, shape, format, windows, tokens, budget);
    }
    table.push_back(std::move(row));
  }
  return table;
}

Value::Array MeasureSteps(const ModelShape& model, const DecodeShape& shape, const Windows& windows,
                          const std::vector<int64_t>& batches, const std::vector<int64_t>& contexts,
                          const MemoryBudget& budget, BenchDevice& device,
                          const RunContext& context, Value::Array& notes) {
  Value::Array result;
  if (model.experts > 0) {
    notes.push_back(model.name + ": steps of models with experts are not measured");
    return result;
  }
  const Steps steps(model, shape, windows, device);
  context.progress->Begin("decode steps, " + model.name, static_cast<int64_t>(contexts.size()),
                          "contexts");
  for (const int64_t tokens : contexts) {
    Steps::Table table;
    std::map<CacheFormat, int64_t> largest;
    Value entry = Value::Object{{"context", tokens}};
    Value::Array rows;
    for (const CacheFormat format : kFormats) {
      largest[format] = RequestsThatFit(model, shape.cache, format, windows, tokens, budget);
      NoteBatches(model, format, batches, tokens, largest[format], notes);
      const std::set<int64_t> fit = BatchesThatFit(batches, largest[format]);
      // Largest first: its memory serves the others.
      std::vector<Value> measured;
      for (auto batch = fit.rbegin(); batch != fit.rend(); ++batch) {
        context.cancel->ThrowIfCancelled("");
        measured.push_back(steps.Measure(format, *batch, tokens));
        table[{format, *batch}] = measured.back();
      }
      rows.insert(rows.end(), measured.rbegin(), measured.rend());
    }
    entry["steps"] = std::move(rows);
    Steps::Compare(table, largest, entry);
    result.push_back(std::move(entry));
    context.progress->Advance(1);
  }
  context.progress->End();
  notes.push_back(
      model.name +
      ": layers share a few sets of weights and caches, taken in turn so that none is still in the "
      "L2 cache; position embedding, query and key norms and the flush of full windows are not in "
      "the step");
  return result;
}

}  // namespace oscar
