#include "oscar/report/verify_table.h"

#include <fmt/format.h>

#include "oscar/core/error.h"
#include "oscar/report/table.h"

namespace oscar {
namespace {

const std::vector<MetricColumn>& AllMetrics() {
  static const std::vector<MetricColumn> kMetrics = {
      {"key_error", "K error"},           {"value_error", "V error"},
      {"logit_error", "logit error"},     {"attention_kl", "attention KL"},
      {"output_error", "output error"},   {"projected_output_error", "o W_O error"},
      {"lse_error", "LSE error"},         {"hidden_error", "hidden error"},
      {"next_token_kl", "next-token KL"}, {"top1_agreement", "top-1"},
      {"perplexity_ratio", "PPL ratio"},
  };
  return kMetrics;
}

std::string Mean(const Value* metric) {
  const Value* mean = metric == nullptr ? nullptr : metric->Find("mean");
  return mean != nullptr && mean->is_number() ? ShortNumber(mean->AsDouble()) : "-";
}

std::string MeanAndError(const Value* metric) {
  std::string text = Mean(metric);
  const Value* se = metric == nullptr ? nullptr : metric->Find("se");
  if (se != nullptr && se->is_number() && se->AsDouble() > 0) {
    text += " \u00b1" + fmt::format("{:.1g}", se->AsDouble());
  }
  return text;
}

const Value* Nested(const Value& value, const char* outer, const std::string& inner) {
  const Value* found = value.Find(outer);
  return found == nullptr ? nullptr : found->Find(inner);
}

bool IsControl(const Value& scheme) {
  const Value* control = scheme.Find("control");
  return control != nullptr && control->is_bool() && control->AsBool();
}

// A gate's name without the scheme in brackets behind it.
std::string NameOf(const Value& gate) {
  const std::string& name = gate.At("name").AsString();
  return name.ends_with(']') ? name.substr(0, name.rfind(" [")) : name;
}

// One past the gates from `begin` on that are the same gate for other schemes, when all passed.
size_t EndOfPassedGroup(const Value::Array& gates, size_t begin) {
  if (!gates[begin].At("name").AsString().ends_with(']')) return begin + 1;
  size_t end = begin;
  bool passed = true;
  for (; end < gates.size() && NameOf(gates[end]) == NameOf(gates[begin]); ++end) {
    passed = passed && gates[end].At("passed").AsBool();
  }
  return passed ? end : begin + 1;
}

// Whether the value of `a` is nearer to its bound than that of `b`, both having passed.
bool Closer(const Value& a, const Value& b) {
  if (!a.At("value").is_number() || !b.At("value").is_number()) return false;
  const bool below = a.At("comparison").AsString().starts_with('<');
  return below ? a.At("value").AsDouble() > b.At("value").AsDouble()
               : a.At("value").AsDouble() < b.At("value").AsDouble();
}

}  // namespace

std::string CheckedVerdict(const Value& record) {
  const Value* schema = record.Find("schema");
  if (schema == nullptr || *schema != Value("oscar.verify/1")) {
    throw Error(ErrorCode::kFormat, fmt::format("report: expected schema oscar.verify/1, found {}",
                                                schema == nullptr ? "none" : schema->ToJson()));
  }
  return record.At("verdict").AsString();
}

std::vector<MetricColumn> PresentMetrics(const Value& record) {
  std::vector<MetricColumn> present;
  for (const MetricColumn& column : AllMetrics()) {
    for (const Value& scheme : record.At("schemes").AsArray()) {
      if (Nested(scheme, "metrics", column.key) != nullptr) {
        present.push_back(column);
        break;
      }
    }
  }
  return present;
}

Cells SchemeCells(const Value& record) {
  const std::vector<MetricColumn> columns = PresentMetrics(record);
  Cells cells = {{"scheme", "bits"}};
  for (const MetricColumn& column : columns) cells[0].push_back(column.title);
  for (const Value& scheme : record.At("schemes").AsArray()) {
    std::vector<std::string> row = {
        scheme.At("name").AsString(),
        fmt::format("{:.2f}", scheme.At("bits_per_element").AsDouble())};
    for (const MetricColumn& column : columns) {
      row.push_back(MeanAndError(Nested(scheme, "metrics", column.key)));
    }
    cells.push_back(std::move(row));
  }
  return cells;
}

Cells RegionCells(const Value& record) {
  Cells cells = {{"scheme", "KL sink", "middle", "recent", "logit error sink", "middle", "recent",
                  "mass sink", "middle", "recent"}};
  for (const Value& scheme : record.At("schemes").AsArray()) {
    if (scheme.Find("regions") == nullptr) continue;
    std::vector<std::string> row = {scheme.At("name").AsString()};
    for (const char* metric : {"attention_kl", "logit_error", "mass"}) {
      for (const char* region : {"sink", "middle", "recent"}) {
        const Value* found = Nested(scheme, "regions", region);
        row.push_back(Mean(found == nullptr ? nullptr : found->Find(metric)));
      }
    }
    cells.push_back(std::move(row));
  }
  return cells;
}

Cells LayerCells(const Value& record, const std::string& metric) {
  Cells cells = {{"layer"}};
  for (const Value& scheme : record.At("schemes").AsArray()) {
    const Value* layers = scheme.Find("layers");
    if (IsControl(scheme) || layers == nullptr) continue;
    cells[0].push_back(scheme.At("name").AsString());
    for (size_t i = 0; i < layers->AsArray().size(); ++i) {
      const Value& layer = layers->AsArray()[i];
      if (cells.size() <= i + 1) cells.push_back({layer.At("layer").ToJson()});
      cells[i + 1].push_back(Mean(Nested(layer, "metrics", metric)));
    }
  }
  return cells;
}

Cells GateCells(const Value& record) {
  Cells cells = {{"gate", "value", "bound", "result"}};
  const Value::Array& gates = record.At("gates").AsArray();
  for (size_t i = 0; i < gates.size();) {
    // A gate that several schemes passed is one row with the value that came closest.
    const size_t end = EndOfPassedGroup(gates, i);
    const Value* closest = &gates[i];
    for (size_t j = i; j < end; ++j) {
      if (Closer(gates[j], *closest)) closest = &gates[j];
    }
    const Value& value = closest->At("value");
    const Value* const bound = closest->Find("bound");
    const std::string name = end - i == 1
                                 ? gates[i].At("name").AsString()
                                 : fmt::format("{} [{} schemes]", NameOf(gates[i]), end - i);
    cells.push_back({name, value.is_number() ? ShortNumber(value.AsDouble()) : "-",
                     bound == nullptr ? closest->At("comparison").AsString()
                                      : fmt::format("{} {}", closest->At("comparison").AsString(),
                                                    ShortNumber(bound->AsDouble())),
                     closest->At("passed").AsBool() ? "pass" : "FAIL"});
    i = end;
  }
  if (const Value* const skipped = record.Find("skipped_gates")) {
    for (const Value& gate : skipped->AsArray()) {
      cells.push_back({gate.At("name").AsString(), "-", "-", "skipped"});
    }
  }
  return cells;
}

Cells KernelCells(const Value& record) {
  Cells cells = {{"scheme", "write us", "decode us", "decode bytes", "GB/s", "BF16 us", "speed-up",
                  "byte ratio"}};
  const Value* const times = Nested(record, "volatile", "kernels");
  if (times == nullptr || !times->is_array()) return cells;
  for (const Value& scheme : times->AsArray()) {
    const auto number = [&](const char* key, const char* format) {
      return fmt::format(fmt::runtime(format), scheme.At(key).AsDouble());
    };
    cells.push_back({scheme.At("name").AsString(), number("write_us", "{:.1f}"),
                     number("decode_us", "{:.1f}"), number("decode_bytes", "{:.0f}"),
                     number("decode_gb_s", "{:.0f}"), number("bf16_us", "{:.1f}"),
                     number("speedup", "{:.2f}"), number("byte_ratio", "{:.2f}")});
  }
  return cells;
}

}  // namespace oscar
