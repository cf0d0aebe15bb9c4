// The trace half of oscar-verify: zoo entries and baselines on held-out traces, without the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/core/value.h"
#include "oscar/quant/methods.h"
#include "oscar/verify/gates.h"
#include "oscar/verify/scheme_result.h"

namespace oscar {

struct EntrySet;  // belonging.h

struct TraceVerifyOptions {
  std::vector<std::filesystem::path> traces;  // held-out traces, at least one
  // "all", or names of the table of methods; "oscar" stands for every zoo entry, and the full name
  // of a scheme ("oscar:<tag>") for one of them.
  std::vector<std::string> schemes = {"all"};
  MethodSettings method;  // windows, group size, scale type, clip mode, as served
  int64_t positions = 128;
  uint64_t seed = 1;
  bool controls = true;
  bool allow_overlap = false;
  std::filesystem::path gates;  // empty: the built-in gates
  // "cpu": the metrics on the CPU. "cuda", "cuda:<i>", "twin": the kernels that serve a cache, or
  // their CPU twins (evaluate_kernels.h).
  std::string device = "cpu";
};

// A verification before it is written: the parts of the report record. The end-to-end half adds
// its metrics to `schemes` and its inputs before gates are evaluated.
struct Verification {
  Value inputs = Value::Object{};
  Value settings = Value::Object{};
  std::vector<SchemeResult> schemes;
  std::vector<std::string> notes;
  Value times = Value::Object{};  // the report's `volatile` part
};

// Reads and checks everything, then measures. Throws
//   Error(kUsage)     unknown scheme, settings that do not fit, a sequence given twice,
//   Error(kMismatch)  another model's rotations, text seen in calibration (unless allowed; the hint
//                     names the option),
//   Error(kData)      no position is quantised, no rows,
//   Error(kDevice)    no such device; Error(kUnsupported) for shapes that the kernels do not take,
// and what TraceReader throws. `progress` gets the work, warnings go to `notes`.
Verification VerifyTraces(const TraceVerifyOptions& options, const EntrySet& entries,
                          const RunContext& context);

// The report's `settings`; bits per element are counted at a context of `context_tokens`.
Value DescribeSettings(const TraceVerifyOptions& options, int64_t context_tokens);

// Says which layers see no quantised key.
std::string ExactLayersNote(const std::vector<int>& layers);

// The report's `inputs.zoo`: tags and hashes of the files.
Value DescribeEntries(const EntrySet& entries);

// Throws Error(kUnsupported) naming `where`, layer and head dim when a scheme among `names` stores
// 2 bits and a layer's rows cannot be packed so.
void RequireSchemesFit(const std::vector<std::string>& names,
                       const std::map<int, LayerShape>& layers, const std::string& where);

// Schemes in table order for a model: what `--schemes` stands for. "all" leaves out what does not
// fit the settings or lacks rotations and says so in `notes`; a named scheme that does not fit
// throws Error(kUsage).
std::vector<KvScheme> SelectSchemes(const std::vector<std::string>& names,
                                    const std::map<int, LayerShape>& layers,
                                    const MethodSettings& settings,
                                    const std::vector<ModelRotations>& rotations,
                                    std::vector<std::string>& notes);

// The record of docs/formats/report.md: evaluates the gates and forms the verdict, "pass" when
// every gate passed and every entry that was given was measured.
Value BuildRecord(const Verification& verification, const std::vector<Gate>& gates);
bool Passed(const Value& record);

}  // namespace oscar
