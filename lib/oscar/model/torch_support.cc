#include "oscar/model/torch_support.h"

#include <fmt/format.h>

#include <charconv>

#include "oscar/core/error.h"
#include "oscar/model/backend.h"

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

namespace oscar {
namespace {

// ATen's messages carry a stack trace after the first line.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

bool IsOutOfMemory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string(error.what_without_backtrace()).find("allocate memory") != std::string::npos;
}

c10::DeviceIndex ParseIndex(const std::string& name, std::string_view digits) {
  int index = -1;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (status != std::errc() || end != digits.data() + digits.size() || index < 0 || index > 127) {
    throw Error(ErrorCode::kUsage, fmt::format("device '{}': expected cuda:<index>", name));
  }
  return static_cast<c10::DeviceIndex>(index);
}

}  // namespace

at::Device ParseDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda" && !name.starts_with("cuda:")) {
    throw Error(ErrorCode::kUsage,
                fmt::format("unknown device '{}': expected cpu, cuda or cuda:<index>", name));
  }
  const c10::DeviceIndex index =
      name == "cuda" ? c10::DeviceIndex{0} : ParseIndex(name, name.substr(5));
  if (!CudaAvailable()) {
    throw Error(ErrorCode::kDevice, fmt::format("device '{}': no CUDA device can be used", name),
                "build with -DOSCAR_TORCH_CUDA=ON against a CUDA build of LibTorch, on a machine "
                "with an NVIDIA driver, or use --device cpu");
  }
  const at::Device device(at::kCUDA, index);
  try {
    at::zeros({1}, at::TensorOptions().device(device)).item<float>();
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kDevice,
                fmt::format("device '{}': {}", name, FirstLine(error.what_without_backtrace())));
  }
  return device;
}

void SetTorchThreads(int threads) { at::set_num_threads(std::max(threads, 1)); }

void GuardTorch(const std::string& what, const std::function<void()>& body) {
  const at::NoGradGuard no_gradients;
  try {
    body();
  } catch (const c10::Error& error) {
    const std::string text = fmt::format("{}: {}", what, FirstLine(error.what_without_backtrace()));
    if (IsOutOfMemory(error)) {
      throw Error(ErrorCode::kMemory, text, "use fewer or shorter sequences, or fewer schemes");
    }
    if (text.find("CUDA") != std::string::npos) throw Error(ErrorCode::kDevice, text);
    throw CheckFailure(text);
  }
}

at::Tensor Wrap(const std::vector<float>& data, at::IntArrayRef shape, at::Device device) {
  OSCAR_CHECK(static_cast<int64_t>(data.size()) == c10::multiply_integers(shape));
  // ATen has no read-only tensors; none of these is written to.
  float* memory = const_cast<float*>(data.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return at::from_blob(memory, shape, at::TensorOptions().dtype(at::kFloat)).to(device);
}

bool CudaAvailable() { return at::hasCUDA(); }

std::string LibTorchVersion() { return TORCH_VERSION; }

}  // namespace oscar
