#include "oscar/verify/verify.h"

#include <chrono>
#include <optional>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/host.h"
#include "oscar/verify/kernel_backend.h"

namespace oscar {

Value RunVerify(const VerifyOptions& options, const RunContext& context) {
  const bool with_traces = !options.traces.traces.empty();
  const bool with_model = !options.model.model.empty();
  if (!with_traces && !with_model) {
    throw Error(ErrorCode::kUsage, "nothing to verify on: neither --traces nor --model is given");
  }
  if (with_model == options.model.text.empty()) {
    throw Error(ErrorCode::kUsage, with_model ? "--model needs --text" : "--text needs --model");
  }
  if (with_model && options.model.device == "twin") {
    throw Error(ErrorCode::kUsage, "--device twin runs kernels on traces, not a model",
                "run the model with --device cpu on its own");
  }
  const bool on_kernels = with_traces && NamesKernels(options.traces.device);
  const std::vector<Gate> gates =
      on_kernels ? ReadKernelGates(options.traces.gates) : ReadGates(options.traces.gates);
  Verification verification;
  Value seconds = Value::Object{};
  const auto timed = [&](const char* stage, const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    seconds[stage] = passed.count();
  };
  TraceVerifyOptions traces = options.traces;
  std::vector<std::string> served_notes;
  const EntrySet entries = ReadEntries(options.zoo);
  ApplyServed(options.served, entries, traces.method, served_notes);
  std::optional<ModelVerification> model;
  if (with_model) model.emplace(options.model, traces, entries);
  if (with_traces) timed("traces", [&] { verification = VerifyTraces(traces, entries, context); });
  if (model) timed("model", [&] { model->Run(context, verification); });
  verification.notes.insert(verification.notes.begin(), served_notes.begin(), served_notes.end());
  verification.times["seconds"] = std::move(seconds);
  verification.times["threads"] = context.threads;
  verification.times["processor"] = ProcessorName();
  return BuildRecord(verification, gates);
}

}  // namespace oscar
