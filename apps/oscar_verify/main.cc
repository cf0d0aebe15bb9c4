// oscar-verify: what 2 bits cost, with a verdict; oscar-verify bench: the kernels' times.
#include <string_view>

#include "oscar/cli/program.h"
#include "oscar/core/files.h"
#include "oscar/metrics/selftest.h"
#include "oscar/report/bench_report.h"
#include "oscar/report/selftest_report.h"
#include "oscar/report/verify_report.h"
#include "oscar_verify/options.h"

namespace {

using oscar::cli::CommonOptions;
using oscar::cli::Outcome;

Outcome Verify(const oscar::VerifyArguments& arguments, const CommonOptions& common,
               const oscar::RunContext& context) {
  if (arguments.selftest) {
    const oscar::Value record = oscar::SelfTestRecord(ToValue(oscar::RunMetricSelfTests()));
    return {oscar::SelfTestText(record), record, record.At("verdict") == oscar::Value("pass")};
  }
  CheckOutputs(arguments, common);
  const oscar::Value record = RunVerify(ToOptions(arguments), context);
  std::vector<oscar::TextFile> files;
  if (!arguments.html.empty()) files.push_back({arguments.html, oscar::VerifyHtml(record)});
  if (!arguments.report.empty()) files.push_back({arguments.report, record.ToJson(2) + "\n"});
  oscar::WriteTextFiles(files);
  return {oscar::VerifyText(record, arguments.layers || common.verbose), record,
          oscar::Passed(record)};
}

Outcome Bench(const oscar::BenchArguments& arguments, const CommonOptions& common,
              const oscar::RunContext& context) {
  CheckOutputs(arguments, common);
  const oscar::Value record = oscar::RunBench(ToOptions(arguments), arguments.device, context);
  if (!arguments.report.empty()) oscar::WriteTextFile(arguments.report, record.ToJson(2) + "\n");
  return {oscar::BenchText(record), record, true};
}

template <typename Arguments>
int RunWith(int argc, char** argv, oscar::cli::OptionTable (*make_table)(Arguments&),
            Outcome (*run)(const Arguments&, const CommonOptions&, const oscar::RunContext&)) {
  Arguments arguments;
  oscar::cli::OptionTable table = make_table(arguments);
  return oscar::cli::RunProgram(argc, argv, table, oscar::VerifyLibraries(),
                                [&](const CommonOptions& common, const oscar::RunContext& context) {
                                  return run(arguments, common, context);
                                });
}

}  // namespace

int main(int argc, char** argv) {
  const bool bench = argc > 1 && std::string_view(argv[1]) == "bench";
  return bench ? RunWith(argc - 1, argv + 1, oscar::BenchTable, Bench)
               : RunWith(argc, argv, oscar::VerifyTable, Verify);
}
