// Where the kernels of a verification run: on a GPU, or as their CPU twins. Both take the same jobs
// on memory of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "oscar/core/value.h"
#include "oscar/cuda/decode.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/write.h"

namespace oscar {

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // The name that --device takes: "cuda" or "twin".
  virtual std::string name() const = 0;
  // What ran them, for the report's volatile part.
  virtual Value Describe() const = 0;

  // Memory of the backend, valid until Release(): a copy of `bytes` bytes, or bytes that are all
  // 0xff (NaN in every float type). At least one byte is allocated. Throws Error(kMemory).
  virtual void* Put(const void* source, int64_t bytes) = 0;
  virtual void* Allocate(int64_t bytes) = 0;
  // Copies what lies at a pointer that Put or Allocate gave.
  virtual void Get(const void* pointer, void* target, int64_t bytes) const = 0;
  virtual void Release() = 0;

  // LaunchWrite and LaunchDecode, finished on return. Errors as theirs.
  virtual void Write(const CacheShape& shape, std::span<const WriteJob> jobs) = 0;
  virtual void Decode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                      const DecodeInputs& inputs, const DecodeOutputs& outputs) = 0;

  // Milliseconds of one launch, the median of several runs of a graph of many launches; the CPU
  // twins tell nothing.
  virtual std::optional<double> TimeWrite(const CacheShape& shape,
                                          std::span<const WriteJob> jobs) = 0;
  virtual std::optional<double> TimeDecode(const DecodeShape& shape,
                                           std::span<const RequestLengths> lengths,
                                           const DecodeInputs& inputs,
                                           const DecodeOutputs& outputs) = 0;
};

// "twin", "cuda" or "cuda:<i>". Throws Error(kUsage) for another name; Error(kDevice) when there is
// no such device or this build has no kernels, saying how to build with them.
std::unique_ptr<KernelBackend> MakeKernelBackend(const std::string& device, int threads);
// Whether `device` names kernels and not the metrics on the CPU ("cpu").
bool NamesKernels(const std::string& device);

// Calls body(lengths, inputs, outputs) for every request on its own, on host memory, in parallel.
// `outputs.o` must be f32.
void ForEachRequest(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                    const DecodeInputs& inputs, const DecodeOutputs& outputs, int threads,
                    const std::function<void(std::span<const RequestLengths>, const DecodeInputs&,
                                             const DecodeOutputs&)>& body);

std::unique_ptr<KernelBackend> MakeTwinBackend(int threads);
// `device` must be the current one (UseDevice).
std::unique_ptr<KernelBackend> MakeDeviceBackend(int device);

}  // namespace oscar
