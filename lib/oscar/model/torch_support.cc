#include "oscar/model/torch_support.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <c10/core/InferenceMode.h>
#include <charconv>

#include "oscar/core/error.h"
#include "oscar/model/backend.h"
#include "oscar/weights/message.h"

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
    throw Error(ErrorCode::kUsage, Message("device ", Quoted(name), ": expected cuda:<index>"));
  }
  return static_cast<c10::DeviceIndex>(index);
}

}  // namespace

at::Device ParseDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda" && !name.starts_with("cuda:")) {
    throw Error(ErrorCode::kUsage,
                Message("unknown device ", Quoted(name), ": expected cpu, cuda or cuda:<index>"));
  }
  const c10::DeviceIndex index =
      name == "cuda" ? c10::DeviceIndex{0} : ParseIndex(name, name.substr(5));
  if (!CudaAvailable()) {
    throw Error(ErrorCode::kDevice, Message("device ", name, ": no CUDA device can be used"),
                "build with -DOSCAR_TORCH_CUDA=ON against a CUDA build of LibTorch, on a machine "
                "with an NVIDIA driver, or use --device cpu");
  }
  const at::Device device(at::kCUDA, index);
  try {
    at::zeros({1}, at::TensorOptions().device(device)).item<float>();
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kDevice,
                Message("device ", name, ": ", FirstLine(error.what_without_backtrace())));
  }
  return device;
}

void SetTorchThreads(int threads) { at::set_num_threads(std::max(threads, 1)); }

void GuardTorch(const std::string& what, const std::function<void()>& body) {
  const c10::InferenceMode inference;
  try {
    body();
  } catch (const c10::Error& error) {
    const std::string text = Message(what, ": ", FirstLine(error.what_without_backtrace()));
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

// at::parallel_for is a template whose loop is parallel only in code that was itself compiled for
// the OpenMP library of this LibTorch. A TensorIterator runs its loop inside LibTorch: each element
// of its tensor stands for one piece.
void ParallelRange(int64_t count, int64_t grain,
                   const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t pieces =
      std::min<int64_t>(at::get_num_threads(), (count + grain - 1) / std::max<int64_t>(grain, 1));
  if (pieces <= 1 || at::in_parallel_region()) {
    body(0, count);
    return;
  }
  at::Tensor numbers = at::arange(pieces, at::kLong);
  at::TensorIterator loop = at::TensorIterator::nullary_op(numbers);
  loop.for_each(
      [&](char** data, const int64_t* strides, int64_t inner, int64_t outer) {
        for (int64_t i = 0; i < inner * outer; ++i) {
          const char* at = data[0] + i % inner * strides[0] + i / inner * strides[1];
          const int64_t piece = *reinterpret_cast<const int64_t*>(at);
          body(count * piece / pieces, count * (piece + 1) / pieces);
        }
      },
      /*grain_size=*/1);
}

void CheckDevice(const std::string& name) { ParseDevice(name); }

bool CudaAvailable() { return at::hasCUDA(); }

std::string LibTorchVersion() { return TORCH_VERSION; }

}  // namespace oscar
