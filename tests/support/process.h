// Runs a program of the build and collects what it says.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "support/golden.h"

namespace oscar::test {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out, err;
};

inline std::filesystem::path ProgramPath(const std::string& program) {
  return std::filesystem::path(OSCAR_BINARY_DIR) / "bin" / program;
}

inline std::string Slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Starts a program with standard output and error going to files; returns its process id.
inline pid_t Start(const std::vector<std::string>& command, const std::filesystem::path& out,
                   const std::filesystem::path& err) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

inline int Wait(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs `program` (a name in the build's bin folder) to its end; its output files go beside
// `scratch`, not into it.
inline ProcessResult Run(const std::string& program, const std::vector<std::string>& arguments,
                         const std::filesystem::path& scratch) {
  std::vector<std::string> command = {ProgramPath(program).string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const std::filesystem::path out = scratch.string() + ".stdout";
  const std::filesystem::path err = scratch.string() + ".stderr";
  ProcessResult result;
  result.exit_code = Wait(Start(command, out, err));
  result.out = Slurp(out);
  result.err = Slurp(err);
  return result;
}

// Relative path -> content of every file below a folder.
inline std::map<std::string, std::string> Snapshot(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files[std::filesystem::relative(entry.path(), folder).string()] = Slurp(entry.path());
    }
  }
  return files;
}

}  // namespace oscar::test
