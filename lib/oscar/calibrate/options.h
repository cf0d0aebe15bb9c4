// What oscar-calibrate is asked to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/quant/scheme.h"
#include "oscar/rotation/clip_search.h"
#include "oscar/rotation/fit.h"
#include "oscar/stats/moments.h"

namespace oscar {

// Where clip ratios come from.
enum class ClipPolicy {
  kSearch,  // per layer, from rows of the traces
  kFixed,   // the given pair for every layer
  kOff      // ratio 1: nothing is clipped
};

struct ClipOptions {
  ClipPolicy policy = ClipPolicy::kSearch;
  double key = 0.96, value = 0.92;  // kFixed: the public recipe
  ClipGrid grid;
  int64_t sequences = 4;  // of the traces' sequences with rows, evenly spaced
  int64_t queries = 64;   // positions per sequence

  // "search", "off" or "K,V" with 0 < K, V <= 1. Throws Error(kUsage).
  static ClipOptions FromText(const std::string& text);
};

struct CalibrateOptions {
  std::vector<std::filesystem::path> traces;
  // nullopt: that side gets the data-free Hadamard rotation, so that the pair is whole.
  std::optional<Target> key_target = Target::kQqt;
  std::optional<Target> value_target = Target::kSst;
  Grouping grouping = Grouping::kLayer;
  FitOptions fit;  // composition kHadamard: both sides are data-free
  ClipOptions clip;
  Windows windows;
  int64_t group_size = 0;  // 0: one group per head
  ScaleType scale_type = ScaleType::kF32;
  std::string model_name;
  std::filesystem::path out;  // folder of the entry
  bool force = false;         // replace `out`

  // Throws Error(kUsage) for a target of the wrong side or values out of range, Error(kIo) when
  // `out` exists and `force` is not set.
  void Check() const;
};

// A target name or "none". Throws Error(kUsage) naming the targets of that side.
std::optional<Target> TargetOption(const std::string& name, bool key);

std::string_view GroupingName(Grouping grouping);    // "layer", "head"
std::string_view SignRuleName(SignRule signs);       // "canonical", "solver"
std::string_view ClipPolicyName(ClipPolicy policy);  // "search", "fixed", "off"

// "sst_r_h_pbr", or "hadamard" for a data-free side.
std::string Objective(const std::optional<Target>& target, Composition composition);

}  // namespace oscar
