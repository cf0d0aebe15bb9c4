#include "oscar/core/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "oscar/core/error.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void Refuse(const fs::path& output, const std::string& what) {
  throw Error(ErrorCode::kUsage, fmt::format("{} {} of this run", output.string(), what),
              "name another output: --force would destroy what is read");
}

bool Same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;  // what cannot be looked at cannot be opened either, and that is said
  return fs::equivalent(a, b, ignored);
}

// Whether `path` lies in `folder`, at any depth. Both exist.
bool IsInside(const fs::path& path, const fs::path& folder) {
  const fs::path whole = fs::weakly_canonical(path), root = fs::weakly_canonical(folder);
  return std::mismatch(root.begin(), root.end(), whole.begin(), whole.end()).first == root.end();
}

void Check(const fs::path& input, const fs::path& output) {
  if (Same(input, output)) Refuse(output, "is an input");
  if (fs::is_directory(output) && IsInside(input, output)) {
    Refuse(output, fmt::format("holds {}, an input", input.string()));
  }
  const bool is_result = output.extension() == ".h5" || output.extension() == ".html";
  if (fs::is_directory(input) && fs::is_regular_file(output) && !is_result &&
      IsInside(output, input)) {
    Refuse(output, fmt::format("is a file of {}, an input", input.string()));
  }
}

}  // namespace

void RefuseSpecialFile(const fs::path& output) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(output, ignored).type();
  if (type == fs::file_type::none || type == fs::file_type::not_found) return;
  if (type == fs::file_type::regular || type == fs::file_type::directory) return;
  throw Error(ErrorCode::kIo,
              fmt::format("{} is {}, not a file", output.string(),
                          type == fs::file_type::symlink ? "a symbolic link" : "a special file"),
              "name a file: what is there would be replaced, not written to");
}

void RefuseInputsAsOutputs(const std::vector<fs::path>& inputs,
                           const std::vector<fs::path>& outputs) {
  std::error_code ignored;
  for (const fs::path& output : outputs) {
    if (output.empty()) continue;
    for (const fs::path& input : inputs) {
      if (input.empty() || !fs::exists(input, ignored)) continue;
      if (fs::exists(output, ignored)) Check(input, output);
    }
    RefuseSpecialFile(output);
  }
}

}  // namespace oscar
