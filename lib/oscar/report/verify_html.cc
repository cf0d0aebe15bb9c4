#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "oscar/report/table.h"
#include "oscar/report/verify_report.h"
#include "oscar/report/verify_table.h"

namespace oscar {
namespace {

constexpr std::string_view kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:76em;margin:2em auto;padding:0 1em;"
    "color:#1c2733}table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;"
    "text-align:right;border-bottom:1px solid "
    "#d8dee4}td:first-child,th:first-child{text-align:left}"
    ".fail{color:#b3261e;font-weight:600}.pass{color:#1b6e3c;font-weight:600}"
    "svg{max-width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#44505c}";

// Colour-blind safe (Okabe and Ito).
constexpr std::string_view kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                        "#e69f00", "#56b4e9", "#000000"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string HtmlTable(const Cells& cells) {
  std::string out = "<table>\n";
  for (size_t r = 0; r < cells.size(); ++r) {
    const char* tag = r == 0 ? "th" : "td";
    out += "<tr>";
    for (const std::string& cell : cells[r]) {
      const char* css = cell == "FAIL"   ? " class=\"fail\""
                        : cell == "pass" ? " class=\"pass\""
                                         : "";
      out += fmt::format("<{0}{1}>{2}</{0}>", tag, css, Escaped(cell));
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (layer, positive value)
};

std::vector<Curve> LayerCurves(const Value& record, const std::string& metric) {
  std::vector<Curve> curves;
  for (const Value& scheme : record.At("schemes").AsArray()) {
    const Value* layers = scheme.Find("layers");
    if (layers == nullptr) continue;
    Curve curve{scheme.At("name").AsString(), {}};
    for (const Value& layer : layers->AsArray()) {
      const Value* values = layer.At("metrics").Find(metric);
      const Value* mean = values == nullptr ? nullptr : values->Find("mean");
      if (mean == nullptr || !mean->is_number() || mean->AsDouble() <= 0) continue;
      curve.points.emplace_back(layer.At("layer").AsDouble(), mean->AsDouble());
    }
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  return curves;
}

// Logarithmic vertical axis: the schemes differ by orders of magnitude.
std::string Plot(const std::vector<Curve>& curves, const std::string& title) {
  if (curves.empty()) return "";
  constexpr double kLeft = 70, kTop = 20, kWidth = 640, kHeight = 300;
  double low = INFINITY, high = 0, last = 1;
  for (const Curve& curve : curves) {
    for (const auto& [layer, value] : curve.points) {
      low = std::min(low, value);
      high = std::max(high, value);
      last = std::max(last, layer);
    }
  }
  const double bottom = std::floor(std::log10(low));
  const double top = std::max(bottom + 1, std::ceil(std::log10(high)));
  const auto x_of = [&](double layer) { return kLeft + kWidth * layer / last; };
  const auto y_of = [&](double value) {
    return kTop + kHeight * (top - std::log10(value)) / (top - bottom);
  };
  std::string out = fmt::format("<h2>{} by layer</h2>\n<svg viewBox=\"0 0 {} {}\" role=\"img\">\n",
                                Escaped(title), kLeft + kWidth + 200, kTop + kHeight + 40);
  for (double decade = bottom; decade <= top; decade += 1) {
    const double y = y_of(std::pow(10.0, decade));
    out += fmt::format(
        "<path d=\"M{} {:.1f}h{}\" stroke=\"#d8dee4\"/><text x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">1e{}</text>\n",
        kLeft, y, kWidth, kLeft - 8, y + 4, static_cast<int>(decade));
  }
  for (size_t c = 0; c < curves.size(); ++c) {
    std::string points;
    for (const auto& [layer, value] : curves[c].points) {
      points += fmt::format("{:.1f},{:.1f} ", x_of(layer), y_of(value));
    }
    const std::string_view color = kColors[c % std::size(kColors)];
    out += fmt::format(
        "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"{}\"/>"
        "<text x=\"{}\" y=\"{}\" style=\"fill:{}\">{}</text>\n",
        color, points, kLeft + kWidth + 12, kTop + 14 + 18 * static_cast<double>(c), color,
        Escaped(curves[c].name));
  }
  return out + fmt::format("<text x=\"{}\" y=\"{}\">layer 0 to {}</text></svg>\n", kLeft,
                           kTop + kHeight + 24, last);
}

}  // namespace

std::string VerifyHtml(const Value& record) {
  const std::string verdict = CheckedVerdict(record);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>OSCAR verification</title>"
      "<style>{}</style>\n<h1>OSCAR verification: <span class=\"{}\">{}</span></h1>\n",
      kStyle, verdict == "pass" ? "pass" : "fail", Escaped(verdict));
  out += HtmlTable(SchemeCells(record));
  const Cells kernels = KernelCells(record);
  if (kernels.size() > 1) out += "<h2>Kernels, means over layers</h2>\n" + HtmlTable(kernels);
  out += Plot(LayerCurves(record, "attention_kl"), "Attention KL");
  out += Plot(LayerCurves(record, "output_error"), "Output error");
  out += Plot(LayerCurves(record, "hidden_error"), "Hidden-state error");
  out += "<h2>By region of the context</h2>\n" + HtmlTable(RegionCells(record));
  out += "<h2>Gates</h2>\n" + HtmlTable(GateCells(record));
  for (const Value& note : record.At("notes").AsArray()) {
    out += fmt::format("<p>{}</p>\n", Escaped(note.AsString()));
  }
  const Value* settings = record.Find("settings");
  const Value* inputs = record.Find("inputs");
  if (settings != nullptr && inputs != nullptr) {
    out += fmt::format("<h2>Settings and inputs</h2>\n<pre>{}</pre>\n<pre>{}</pre>\n",
                       Escaped(settings->ToJson(2)), Escaped(inputs->ToJson(2)));
  }
  return out + "</html>\n";
}

}  // namespace oscar
