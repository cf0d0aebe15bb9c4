// oscar-verify: rotation entries and baselines against BF16, with a verdict as exit code.
#include "oscar/cli/program.h"
#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/metrics/selftest.h"
#include "oscar/model/backend.h"
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
  oscar::CheckOutputs(arguments, common.force);
  const oscar::Value record = RunVerify(ToOptions(arguments), context);
  std::vector<oscar::TextFile> files;
  if (!arguments.html.empty()) files.push_back({arguments.html, oscar::VerifyHtml(record)});
  if (!arguments.report.empty()) files.push_back({arguments.report, record.ToJson(2) + "\n"});
  oscar::WriteTextFiles(files);
  return {oscar::VerifyText(record, arguments.layers || common.verbose), record,
          oscar::Passed(record)};
}

}  // namespace

int main(int argc, char** argv) {
  oscar::VerifyArguments arguments;
  oscar::cli::OptionTable table = oscar::VerifyTable(arguments);
  return oscar::cli::RunProgram(argc, argv, table, {{"LibTorch", oscar::LibTorchVersion()}},
                                [&](const CommonOptions& common, const oscar::RunContext& context) {
                                  return Verify(arguments, common, context);
                                });
}
