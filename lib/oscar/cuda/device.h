// The CUDA device, without CUDA headers: memory, streams, graphs and timers. In a build without
// CUDA the same functions exist; DeviceCount() is 0 and everything else throws Error(kDevice).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace oscar {

// A cudaStream_t; nullptr is the default stream.
using Stream = void*;

struct DeviceInfo {
  std::string name;
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0, free_bytes = 0, l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // with the opt-in
  int driver_version = 0, runtime_version = 0;
};

// True when this build holds the kernels.
bool HasCuda();
// Usable devices; 0 when there is none, no driver or no CUDA in this build. Never throws.
int DeviceCount();
// Makes `device` current for this thread. Throws Error(kDevice) when there is no such device or it
// is not a Hopper GPU (compute capability 9.0), which the kernels are built for.
void UseDevice(int device);
DeviceInfo QueryDevice(int device);
// The device that is current for this thread.
int CurrentDevice();

// Device memory, released with the object. Throws Error(kMemory) when there is not enough.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }
  // Synchronous copies of `bytes` bytes from or to host memory.
  void Upload(const void* source, int64_t bytes, int64_t offset = 0);
  void Download(void* target, int64_t bytes, int64_t offset = 0) const;
  // Sets every byte.
  void Fill(uint8_t value);

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A non-blocking stream.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  Stream get() const { return stream_; }
  // Waits for the work and throws Error(kDevice) if any of it failed.
  void Synchronize() const;

 private:
  Stream stream_ = nullptr;
};

// Copies host memory to the device in stream order; `source` must live until the copy has run.
void UploadAsync(const DeviceBuffer& target, const void* source, int64_t bytes, Stream stream);

// Work recorded once and replayed with one launch.
class DeviceGraph {
 public:
  // Records what `work` launches on `stream`.
  DeviceGraph(const DeviceStream& stream, const std::function<void(Stream)>& work);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  void Launch(const DeviceStream& stream) const;

 private:
  void* graph_ = nullptr;
};

// Milliseconds that `work` takes on the device, between two events on `stream`.
double DeviceMilliseconds(const DeviceStream& stream, const std::function<void(Stream)>& work);

// Sum over `bytes` of device memory (a multiple of 16), which reads each byte once: the yardstick
// for read bandwidth. The sum lands in `sum` (4 bytes on the device).
void ReadAll(const void* data, int64_t bytes, void* sum, Stream stream);

}  // namespace oscar
