// Gates: bounds on measured numbers, read from a file (docs/formats/gates.md), that make a verdict.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/verify/scheme_result.h"

namespace oscar {

struct Gate {
  std::string name;
  // A scheme's name; a method's stands for every "<method>:<tag>"; "*": all but the controls.
  std::string scheme;
  std::string metric;      // "*": all
  std::string region;      // empty: overall; else "sink", "middle" or "recent"
  std::string comparison;  // "<=", "<", ">=", ">", "==" or "finite"
  double bound = 0;
  // Another scheme: the ratio of both means is compared. "noise": the scheme's own matched control.
  std::string relative_to;
  // A required gate fails when its scheme or metric was not measured; others are left out then.
  bool required = true;
};

// Schema `oscar.gates/1`. Throws Error(kFormat) naming `where`, the gate and the fault; unknown
// keys are faults.
std::vector<Gate> ParseGates(std::string_view text, const std::string& where);
// An empty path: the built-in copy of configs/verify/default.json.
std::vector<Gate> ReadGates(const std::filesystem::path& path);

// The gates of a run on kernels. An empty path: the built-in copy of configs/verify/kernels.json;
// else the file's gates and, of the built-in ones, the agreement of kernels and CPU twins (metrics
// kernel_*), which no file can waive.
std::vector<Gate> ReadKernelGates(const std::filesystem::path& path);

struct GateResult {
  Gate gate;
  std::string name;    // the gate's, with the scheme where it matched several
  std::string scheme;  // that was compared
  double value = 0;
  bool has_value = false;
  bool passed = false;
  std::string reason;  // what was compared with what, or why it failed without a value
};

// All gates in the file's order. `skipped` receives those that were left out, with the reason.
std::vector<GateResult> EvaluateGates(std::span<const Gate> gates,
                                      std::span<const SchemeResult> schemes,
                                      std::vector<GateResult>& skipped);

// {name, scheme, metric, region, comparison, bound, relative_to, value, passed, reason} in the
// words of a gates file: without region, bound and relative_to where the gate has none.
Value ToValue(const GateResult& result);
// {name, scheme, metric, region, reason}.
Value SkippedValue(const GateResult& skipped);

}  // namespace oscar
