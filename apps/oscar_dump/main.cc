#include "oscar/cli/program.h"
#include "oscar/core/outputs.h"
#include "oscar/dump/dump.h"
#include "oscar/h5/file.h"
#include "oscar/model/backend.h"
#include "oscar_dump/options.h"

int main(int argc, char** argv) {
  oscar::DumpArguments arguments;
  oscar::cli::OptionTable table = oscar::DumpTable(arguments);
  const oscar::cli::LibraryVersions libraries = {
      {"LibTorch", oscar::LibTorchVersion() + (oscar::CudaAvailable() ? " with CUDA" : "")},
      {"HDF5", oscar::H5LibraryVersion()}};
  return oscar::cli::RunProgram(
      argc, argv, table, libraries,
      [&](const oscar::cli::CommonOptions& common, const oscar::RunContext& context) {
        oscar::RefuseInputsAsOutputs({common.config}, {arguments.out});
        const oscar::DumpResult result = RunDump(ToOptions(arguments, common.force), context);
        return oscar::cli::Outcome{DumpText(result), DumpJson(result)};
      });
}
