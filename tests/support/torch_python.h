// PyTorch as an independent reader, where the set-up script has installed it.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "oscar/core/error.h"
#include "oscar/core/value.h"

namespace oscar::test {

inline std::filesystem::path TorchPythonFolder() {
  return std::filesystem::path(OSCAR_SOURCE_DIR) / ".deps" / "torch";
}

// Output of a shell command; throws when it fails.
inline std::string OutputOf(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), nullptr);
  OSCAR_CHECK(pipe != nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), pipe.get())) > 0;) {
    output.append(buffer, n);
  }
  if (::pclose(pipe.release()) != 0) throw CheckFailure("failed: " + command);
  return output;
}

// "PYTHONPATH=... python3 -W ignore", to be followed by a script and its arguments.
inline std::string TorchPython() {
  return "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='" + TorchPythonFolder().string() +
         "' python3 -W ignore ";
}

inline bool HasTorchPython() {
  if (!std::filesystem::exists(TorchPythonFolder() / "torch")) return false;
  try {
    return OutputOf(TorchPython() + "-c 'import torch; print(1)' 2>/dev/null") == "1\n";
  } catch (const CheckFailure&) {
    return false;
  }
}

// What torch.load(weights_only=True) reads; see tests/golden/torchfile/describe.py.
inline Value DescribeWithTorch(const std::filesystem::path& path) {
  const std::string script =
      (std::filesystem::path(OSCAR_SOURCE_DIR) / "tests/golden/torchfile/describe.py").string();
  return Value::FromJson(OutputOf(TorchPython() + script + " '" + path.string() + "' 2>/dev/null"),
                         path.string());
}

}  // namespace oscar::test
