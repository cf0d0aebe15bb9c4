// What a benchmark asks of a device. The real one runs kernels; tests put a table in its place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "oscar/bench/capacity.h"
#include "oscar/bench/model_shape.h"
#include "oscar/core/layer.h"
#include "oscar/cuda/device.h"
#include "oscar/cuda/plan.h"

namespace oscar {

// Microseconds of one launch: lowest, median and highest over replays of a graph.
struct Spread {
  double low = 0, median = 0, high = 0;
};

// Decode attention of one layer: `batch` requests of `context` tokens each.
struct DecodeCase {
  DecodeShape shape;
  CacheFormat format = CacheFormat::kInt2;
  int64_t batch = 1, context = 1;
  Windows windows{0, 0};  // tokens of each request in bf16 rows (INT2 only)
  bool shuffled = true;   // 8-slot pages in random order, else in sequence
  bool rotated = false;   // the output times a transposed rotation, one of the layer

  RequestLengths Each() const;
  // Bytes of the cache that one launch reads.
  int64_t Bytes() const;
};

// One launch of the write kernel for one layer. Prefill: keys and values of `tokens` tokens,
// rotated, clipped, quantised, into pages in random order. Decode step: the new keys and values of
// `tokens` requests, rotated, into the bf16 ring, and their queries rotated.
struct WriteCase {
  DecodeShape shape;
  int64_t tokens = 1;
  bool decode_step = false;

  // Bytes read and written, rotations and slot numbers apart.
  int64_t Bytes() const;
};

// The attention of PyTorch on a contiguous bf16 cache, [batch, KV head, token, channel].
enum class SdpaKernel { kFlash, kCudnn };

// One decode step of a whole model: all layers' cache writes, attention and matrix products.
struct StepCase {
  ModelShape model;
  DecodeCase attention;
};

// Milliseconds: of the whole step in one graph, and of graphs of its matrix products and of its
// attention part (writes, attention, merge) alone.
struct StepTimes {
  Spread step, gemm, attention;
};

class BenchDevice {
 public:
  virtual ~BenchDevice() = default;
  virtual DeviceInfo Info() = 0;
  // Bytes per microsecond of a kernel that reads memory and does nothing else.
  virtual double ReadBandwidth() = 0;
  // Launch after launch reads other memory, more than the L2 cache holds.
  virtual Spread Decode(const DecodeCase& c) = 0;
  virtual Spread Write(const WriteCase& c) = 0;
  // Microseconds of one plan of the case, its copy to the device included.
  virtual double Plan(const DecodeCase& c) = 0;
  // Nothing where this build has no CUDA part of LibTorch, or that kernel refuses the case.
  virtual std::optional<Spread> Sdpa(const DecodeCase& c, SdpaKernel kernel) = 0;
  // Whether Sdpa and Step can run at all.
  virtual bool HasTorch() = 0;
  virtual StepTimes Step(const StepCase& c) = 0;
};

// "cuda" or "cuda:<i>". Throws Error(kUsage) for another name, Error(kDevice) without a device or
// in a build without CUDA, saying how to build.
std::unique_ptr<BenchDevice> OpenBenchDevice(const std::string& device);

}  // namespace oscar
