#include <fmt/format.h>

#include "oscar/report/table.h"
#include "oscar/report/verify_report.h"
#include "oscar/report/verify_table.h"

namespace oscar {
namespace {

std::string Rendered(const Cells& cells) {
  TextTable table(cells.front());
  for (size_t i = 1; i < cells.size(); ++i) table.Row(cells[i]);
  return table.ToString("  ");
}

std::string SettingsLine(const Value& record) {
  const Value* settings = record.Find("settings");
  if (settings == nullptr) return "";
  const auto text = [&](const char* key) {
    const Value* value = settings->Find(key);
    if (value == nullptr) return std::string("-");
    return value->is_string() ? value->AsString() : value->ToJson();
  };
  const Value* const flushed = settings->Find("flush");
  const bool rings = flushed != nullptr && *flushed != Value(1);
  const std::string flush = rings ? ", flush " + text("flush") : "";
  return fmt::format(
      "windows {} (sink {}, recent {}{}), group size {}, scales {}, clip {}, bits at {} tokens{}\n",
      text("windows") == "true" ? "on" : "off", text("sink"), text("recent"), flush,
      text("group_size"), text("scale_dtype"), text("clip_mode"), text("context_tokens"),
      text("device") == "-" || text("device") == "cpu" ? "" : ", kernels on " + text("device"));
}

}  // namespace

std::string VerifyText(const Value& record, bool layers) {
  const std::string verdict = CheckedVerdict(record);
  std::string out = Rendered(SchemeCells(record));
  out += "\n" + SettingsLine(record);
  if (layers) {
    out += "\nby region of the context:\n" + Rendered(RegionCells(record));
    out += "\nattention KL by layer:\n" + Rendered(LayerCells(record, "attention_kl"));
  }
  const Cells kernels = KernelCells(record);
  if (kernels.size() > 1) out += "\nkernels, means over layers:\n" + Rendered(kernels);
  const Cells gates = GateCells(record);
  if (gates.size() > 1) out += "\n" + Rendered(gates);
  for (const Value& gate : record.At("gates").AsArray()) {
    const Value* reason = gate.Find("reason");
    if (gate.At("passed").AsBool() && !layers) continue;
    if (reason == nullptr || !reason->is_string() || reason->AsString().empty()) continue;
    out += fmt::format("{}: {}\n", gate.At("name").AsString(), reason->AsString());
  }
  for (const Value& note : record.At("notes").AsArray()) {
    out += fmt::format("note: {}\n", note.AsString());
  }
  return out + fmt::format("\nverdict: {}\n", verdict);
}

}  // namespace oscar
