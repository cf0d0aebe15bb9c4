// oscar-zoo: looks at rotation files and rotation zoo folders.
#include "oscar/cli/program.h"
#include "oscar/inspect/inspect.h"
#include "oscar_zoo/options.h"

int main(int argc, char** argv) {
  oscar::ZooOptions options;
  oscar::cli::OptionTable table = oscar::MakeZooTable(options);
  return oscar::cli::RunProgram(
      argc, argv, table, {},
      [&](const oscar::cli::CommonOptions&, const oscar::RunContext& context) {
        oscar::InspectReport report = oscar::RunInspect(oscar::ToInspectOptions(options), context);
        return oscar::cli::Outcome{std::move(report.text), std::move(report.record), report.passed};
      });
}
