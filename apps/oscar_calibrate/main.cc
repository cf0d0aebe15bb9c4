// oscar-calibrate: calibration traces in, a rotation zoo entry out.
#include "oscar/calibrate/calibrate.h"
#include "oscar/cli/program.h"
#include "oscar/core/outputs.h"
#include "oscar_calibrate/options.h"

int main(int argc, char** argv) {
  oscar::CalibrateArguments arguments;
  oscar::cli::OptionTable table = oscar::CalibrateTable(arguments);
  return oscar::cli::RunProgram(
      argc, argv, table, {{"BLAS", oscar::BlasLibrary()}},
      [&](const oscar::cli::CommonOptions& common, const oscar::RunContext& context) {
        oscar::RefuseInputsAsOutputs({common.config}, {arguments.out});
        const oscar::CalibrateResult result =
            oscar::Calibrate(oscar::ToOptions(arguments, common.force), context);
        return oscar::cli::Outcome{result.summary, result.record};
      });
}
