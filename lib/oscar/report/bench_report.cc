#include "oscar/report/bench_report.h"

#include <fmt/format.h>

#include <vector>

#include "oscar/core/error.h"
#include "oscar/report/table.h"

namespace oscar {
namespace {

// 102400 as 100K.
std::string Tokens(const Value& tokens) {
  const int64_t n = tokens.AsInt();
  if (n >= 1024 * 1024 && n % (1024 * 1024) == 0) return fmt::format("{}M", n / (1024 * 1024));
  return n >= 1024 && n % 1024 == 0 ? fmt::format("{}K", n / 1024) : fmt::format("{}", n);
}

std::string Fixed(const Value& value, int digits) {
  return fmt::format("{:.{}f}", value.AsDouble(), digits);
}

std::string Microseconds(const Value* timing) {
  if (timing == nullptr) return "-";
  const double us = timing->At("us").AsDouble();
  return fmt::format("{:.{}f}", us, us < 100 ? 2 : 1);
}

// Half the range over the replays in percent of the median.
std::string SpreadText(const Value& timing) {
  const double range = timing.At("us_high").AsDouble() - timing.At("us_low").AsDouble();
  return fmt::format("{:.1f}", 50 * range / timing.At("us").AsDouble());
}

std::string DecodeTable(const Value::Array& rows) {
  TextTable table({"batch x context", "pages", "INT2 us", "+-%", "GB/s", "of read", "BF16 us",
                   "+-%", "of read", "flash us", "cuDNN us", "speed-up", "over best", "bytes",
                   "plan us"});
  for (const Value& row : rows) {
    const Value& int2 = row.At("int2");
    const Value& bf16 = row.At("bf16");
    table.Row({fmt::format("{} x {}", row.At("batch").AsInt(), Tokens(row.At("context"))),
               row.At("order").AsString(), Microseconds(&int2), SpreadText(int2),
               Fixed(int2.At("gb_s"), 0), Fixed(int2.At("of_read"), 2), Microseconds(&bf16),
               SpreadText(bf16), Fixed(bf16.At("of_read"), 2), Microseconds(row.Find("sdpa_flash")),
               Microseconds(row.Find("sdpa_cudnn")), Fixed(row.At("speedup"), 2),
               Fixed(row.At("speedup_over_best_bf16"), 2), Fixed(row.At("byte_ratio"), 2),
               Fixed(row.At("plan_us"), 0)});
  }
  return table.ToString("  ");
}

std::string WriteTable(const Value::Array& rows) {
  TextTable table({"write", "tokens", "us", "+-%", "GB/s", "of read"});
  for (const Value& row : rows) {
    table.Row({row.At("kind").AsString(), Tokens(row.At("tokens")), Microseconds(&row),
               SpreadText(row), Fixed(row.At("gb_s"), 0), Fixed(row.At("of_read"), 2)});
  }
  return table.ToString("  ");
}

std::string CapacityText(const Value::Array& rows) {
  TextTable table({"context", "BF16 requests", "INT2 requests"});
  for (const Value& row : rows) {
    table.Row({Tokens(row.At("context")), row.At("bf16").ToJson(), row.At("int2").ToJson()});
  }
  return table.ToString("  ");
}

std::string StepTable(const Value::Array& contexts) {
  TextTable table({"context", "cache", "batch", "step ms", "GEMM", "attention", "rest", "tokens/s",
                   "attention / bytes", "step / bytes"});
  for (const Value& context : contexts) {
    for (const Value& step : context.At("steps").AsArray()) {
      table.Row({Tokens(context.At("context")), step.At("format").AsString(),
                 step.At("batch").ToJson(), Fixed(step.At("step_ms"), 3),
                 Fixed(step.At("gemm_ms"), 3), Fixed(step.At("attention_ms"), 3),
                 Fixed(step.At("rest_ms"), 3), Fixed(step.At("tokens_per_second"), 0),
                 Fixed(step.At("attention_over_bytes"), 2), Fixed(step.At("step_over_bytes"), 2)});
    }
  }
  return table.ToString("  ");
}

std::string RatioLines(const Value& context) {
  std::string out;
  if (const Value* speedup = context.Find("speedup")) {
    out += fmt::format("  {}: speed-up at batch 1 {}, by bytes alone {}, paper {}\n",
                       Tokens(context.At("context")), Fixed(speedup->At("measured"), 2),
                       Fixed(speedup->At("by_bytes"), 2), Fixed(speedup->At("paper"), 1));
  }
  if (const Value* ratio = context.Find("throughput")) {
    out += fmt::format(
        "  {}: throughput at equal memory {} (INT2 batch {}, BF16 batch {}), by bytes alone {}, "
        "paper {}\n",
        Tokens(context.At("context")), Fixed(ratio->At("measured"), 2),
        ratio->At("int2_batch").AsInt(), ratio->At("bf16_batch").AsInt(),
        Fixed(ratio->At("by_bytes"), 2), Fixed(ratio->At("paper"), 1));
  }
  return out;
}

std::string ModelText(const Value& model) {
  const Value& bytes = model.At("per_token");
  std::string out = fmt::format(
      "{}: {} layers, {} query heads, {} KV heads of {}\n"
      "cache bytes per token: INT2 {} in a layer, {} in all; BF16 {} and {}\n",
      model.At("name").AsString(), model.At("layers").AsInt(), model.At("q_heads").AsInt(),
      model.At("kv_heads").AsInt(), model.At("head_dim").AsInt(), bytes.At("int2_bytes").AsInt(),
      bytes.At("int2_bytes_all_layers").AsInt(), bytes.At("bf16_bytes").AsInt(),
      bytes.At("bf16_bytes_all_layers").AsInt());
  if (const Value* capacity = model.Find("capacity")) {
    out +=
        fmt::format("\nrequests that fit beside {:.1f} GB of weights:\n{}",
                    1e-9 * model.At("weight_bytes").AsDouble(), CapacityText(capacity->AsArray()));
  }
  if (const Value* decode = model.Find("decode")) {
    out += "\ndecode attention of one layer:\n" + DecodeTable(decode->AsArray());
  }
  if (const Value* writes = model.Find("writes")) {
    out += "\ncache writes of one layer, keys and values rotated, prefill clipped:\n" +
           WriteTable(writes->AsArray());
  }
  const Value* steps = model.Find("steps");
  if (steps != nullptr && !steps->AsArray().empty()) {
    out += "\ndecode steps of the whole model:\n" + StepTable(steps->AsArray());
    for (const Value& context : steps->AsArray()) out += RatioLines(context);
    out += "  paper: on an H100 against that system's own BF16 kernels (arXiv:2605.17757)\n";
  }
  return out;
}

}  // namespace

std::string BenchText(const Value& record) {
  const Value* schema = record.Find("schema");
  if (schema == nullptr || *schema != Value("oscar.bench/1")) {
    throw Error(ErrorCode::kFormat, fmt::format("report: expected schema oscar.bench/1, found {}",
                                                schema == nullptr ? "none" : schema->ToJson()));
  }
  const Value& device = record.At("device");
  const Value& settings = record.At("settings");
  std::string out = fmt::format(
      "{}, read bandwidth {:.0f} GB/s; scales {}, group size {}, windows {} (sink {}, recent {})\n",
      device.At("name").AsString(), device.At("read_gb_s").AsDouble(),
      settings.At("scale_dtype").AsString(), settings.At("group_size").AsInt(),
      settings.At("windows").AsBool() ? "on" : "off", settings.At("sink").AsInt(),
      settings.At("recent").AsInt());
  for (const Value& model : record.At("models").AsArray()) out += "\n" + ModelText(model);
  for (const Value& note : record.At("notes").AsArray()) {
    out += fmt::format("note: {}\n", note.AsString());
  }
  return out;
}

}  // namespace oscar
