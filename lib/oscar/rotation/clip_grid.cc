#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/rotation/clip_search.h"

namespace oscar {
namespace {

constexpr int64_t kMostPoints = 1000;

[[noreturn]] void Refuse(const std::string& text, const char* why) {
  throw Error(
      ErrorCode::kUsage, fmt::format("clip grid '{}': {}", text, why),
      "expected LO:HI:STEP with 0 < LO <= HI <= 1 and STEP > 0, for example 0.80:1.00:0.01");
}

double NumberFrom(const std::string& text, std::string_view part) {
  double value = 0;
  const char* const end = part.data() + part.size();
  const auto [rest, status] = std::from_chars(part.data(), end, value);
  if (part.empty() || status != std::errc() || rest != end) Refuse(text, "not three numbers");
  return value;
}

}  // namespace

ClipGrid ClipGrid::FromText(const std::string& text) {
  const size_t first = text.find(':');
  const size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  if (second == std::string::npos) Refuse(text, "not three numbers");
  const std::string_view view = text;
  ClipGrid grid;
  grid.low = NumberFrom(text, view.substr(0, first));
  grid.high = NumberFrom(text, view.substr(first + 1, second - first - 1));
  grid.step = NumberFrom(text, view.substr(second + 1));
  grid.Ratios();
  return grid;
}

std::vector<double> ClipGrid::Ratios() const {
  const std::string text = fmt::format("{}:{}:{}", low, high, step);
  // Written so that NaN fails too.
  if (!(low > 0 && low <= high && high <= 1)) Refuse(text, "ratios out of range");
  if (!(step > 0) || !std::isfinite(step)) Refuse(text, "step out of range");
  // A thousandth of a step of slack: 0.7 + 30 * 0.01 must reach 1 whatever its rounding.
  const double steps = std::floor((high - low) / step + 1e-3);
  if (steps >= static_cast<double>(kMostPoints)) Refuse(text, "more than 1000 points");
  std::vector<double> ratios;
  for (int64_t i = 0; i <= static_cast<int64_t>(steps); ++i) {
    const double ratio = std::round((low + static_cast<double>(i) * step) * 1e6) / 1e6;
    ratios.push_back(std::min(ratio, high));
  }
  return ratios;
}

}  // namespace oscar
