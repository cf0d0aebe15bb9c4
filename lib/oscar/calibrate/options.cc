#include "oscar/calibrate/options.h"

#include <fmt/format.h>

#include <charconv>

#include "oscar/core/error.h"
#include "oscar/core/outputs.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

double RatioFrom(const std::string& text, std::string_view part) {
  double value = 0;
  const char* const end = part.data() + part.size();
  const auto [rest, status] = std::from_chars(part.data(), end, value);
  const bool number = !part.empty() && status == std::errc() && rest == end;
  if (!number || !(value > 0 && value <= 1)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--clip: expected 'search', 'off' or two ratios K,V in (0, 1], found "
                            "'{}'",
                            text),
                "the public recipe is --clip 0.96,0.92");
  }
  return value;
}

void CheckTarget(const std::optional<Target>& target, bool key) {
  if (target && IsKeyTarget(*target) != key) {
    throw Error(ErrorCode::kUsage, fmt::format("{} is no target for {}", TargetName(*target),
                                               key ? "keys" : "values"));
  }
}

}  // namespace

ClipOptions ClipOptions::FromText(const std::string& text) {
  ClipOptions options;
  if (text == "search") return options;
  if (text == "off") {
    options.policy = ClipPolicy::kOff;
    return options;
  }
  options.policy = ClipPolicy::kFixed;
  const size_t comma = text.find(',');
  const std::string_view view = text;
  options.key = RatioFrom(text, view.substr(0, comma));
  options.value =
      RatioFrom(text, comma == std::string::npos ? std::string_view() : view.substr(comma + 1));
  return options;
}

std::optional<Target> TargetOption(const std::string& name, bool key) {
  if (name == "none") return std::nullopt;
  for (const Target target :
       {Target::kQqt, Target::kKtk, Target::kSst, Target::kSvsv, Target::kVtv}) {
    if (IsKeyTarget(target) == key && TargetName(target) == name) return target;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("unknown target '{}' for {}; known: {}", name, key ? "keys" : "values",
                          key ? "qqt, ktk, none" : "sst, svsv, vtv, none"));
}

std::string_view GroupingName(Grouping grouping) {
  return grouping == Grouping::kLayer ? "layer" : "head";
}

std::string_view SignRuleName(SignRule signs) {
  return signs == SignRule::kCanonical ? "canonical" : "solver";
}

std::string_view ClipPolicyName(ClipPolicy policy) {
  switch (policy) {
    case ClipPolicy::kSearch:
      return "search";
    case ClipPolicy::kFixed:
      return "fixed";
    case ClipPolicy::kOff:
      return "off";
  }
  FailCheck("every clip policy has a name", __FILE__, __LINE__);
}

std::string Objective(const std::optional<Target>& target, Composition composition) {
  if (!target || composition == Composition::kHadamard) return "hadamard";
  return fmt::format("{}_{}", TargetName(*target), CompositionName(composition));
}

void CalibrateOptions::Check() const {
  CheckTarget(key_target, true);
  CheckTarget(value_target, false);
  if (model_name.empty()) throw Error(ErrorCode::kUsage, "--model-name: expected a name");
  if (out.empty()) throw Error(ErrorCode::kUsage, "--out: expected a folder");
  if (windows.sink < 0 || windows.recent < 0) {
    throw Error(ErrorCode::kUsage, fmt::format("windows: expected sink and recent of at least 0, "
                                               "found {} and {}",
                                               windows.sink, windows.recent));
  }
  if (windows.flush < 1) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--flush: expected at least 1, found {}", windows.flush));
  }
  if (clip.sequences < 1 || clip.queries < 1) {
    throw Error(ErrorCode::kUsage, "clip search: expected at least 1 sequence and 1 position");
  }
  if (!(fit.gates.min_tokens_per_dim >= 0)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--min-tokens-per-dim: expected at least 0, found {}",
                            fit.gates.min_tokens_per_dim));
  }
  if (clip.policy == ClipPolicy::kSearch) clip.grid.Ratios();
  RefuseInputsAsOutputs(traces, {out});
  if (std::filesystem::exists(out) && !force) {
    throw Error(ErrorCode::kIo, fmt::format("{}: exists already", out.string()),
                "choose another folder or pass --force");
  }
  // Now, and not after the work that it would be in vain.
  if (std::filesystem::exists(out)) RequireReplaceableEntry(out);
}

}  // namespace oscar
