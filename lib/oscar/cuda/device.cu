#include "oscar/cuda/device.h"

#include <cuda_runtime.h>

#include <utility>

#include "oscar/cuda/cuda_error.h"

namespace oscar {
namespace {

cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream); }

void CheckRange(int64_t offset, int64_t bytes, int64_t capacity) {
  OSCAR_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= capacity);
}

// A plain grid-stride sum with four independent 16-byte loads in flight per thread.
__global__ void __launch_bounds__(512)
    ReadAllKernel(const uint4* data, int64_t count, uint32_t* sum) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t total = 0;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride);
    const uint4 c = __ldcs(data + i + 2 * stride), d = __ldcs(data + i + 3 * stride);
    total += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) +
             (d.x ^ d.y ^ d.z ^ d.w);
  }
  for (; i < count; i += stride) {
    const uint4 a = __ldcs(data + i);
    total += a.x ^ a.y ^ a.z ^ a.w;
  }
  if (total != 0) atomicAdd(sum, total);
}

}  // namespace

bool HasCuda() { return true; }

int DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // not sticky: later calls start clean
    return 0;
  }
  return count;
}

void UseDevice(int device) {
  const int count = DeviceCount();
  if (device < 0 || device >= count) {
    throw Error(ErrorCode::kDevice, count == 0 ? "no CUDA device is available"
                                               : "no CUDA device " + std::to_string(device) +
                                                     ": there are " + std::to_string(count));
  }
  const DeviceInfo info = QueryDevice(device);
  if (info.capability_major != 9 || info.capability_minor != 0) {
    throw Error(ErrorCode::kDevice, "device " + std::to_string(device) + " (" + info.name +
                                        ") has compute capability " +
                                        std::to_string(info.capability_major) + "." +
                                        std::to_string(info.capability_minor) +
                                        "; the kernels are built for 9.0 (Hopper)");
  }
  CheckCuda(cudaSetDevice(device), "selection of a CUDA device");
}

int CurrentDevice() {
  if (DeviceCount() == 0) throw Error(ErrorCode::kDevice, "no CUDA device is available");
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "query of the current CUDA device");
  return device;
}

DeviceInfo QueryDevice(int device) {
  cudaDeviceProp properties{};
  CheckCuda(cudaGetDeviceProperties(&properties, device), "query of a CUDA device");
  DeviceInfo info;
  info.name = properties.name;
  info.capability_major = properties.major;
  info.capability_minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  info.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  int current = 0;
  size_t free_bytes = 0, total = 0;
  if (cudaGetDevice(&current) == cudaSuccess && current == device &&
      cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) {
    info.free_bytes = static_cast<int64_t>(free_bytes);
  }
  cudaDriverGetVersion(&info.driver_version);
  cudaRuntimeGetVersion(&info.runtime_version);
  return info;
}

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
  OSCAR_CHECK(bytes >= 0);
  if (bytes > 0) {
    CheckCuda(cudaMalloc(&data_, static_cast<size_t>(bytes)), "allocation of device memory");
  }
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
void DeviceBuffer::Upload(const void* source, int64_t bytes, int64_t offset) {
  CheckRange(offset, bytes, bytes_);
  CheckCuda(cudaMemcpy(static_cast<char*>(data_) + offset, source, static_cast<size_t>(bytes),
                       cudaMemcpyHostToDevice),
            "copy to the device");
  // Pageable memory may still be on its way: other streams do not wait for the default one.
  CheckCuda(cudaStreamSynchronize(nullptr), "copy to the device");
}
void DeviceBuffer::Download(void* target, int64_t bytes, int64_t offset) const {
  CheckRange(offset, bytes, bytes_);
  CheckCuda(cudaMemcpy(target, static_cast<const char*>(data_) + offset, static_cast<size_t>(bytes),
                       cudaMemcpyDeviceToHost),
            "copy from the device");
}
void DeviceBuffer::Fill(uint8_t value) {
  if (bytes_ > 0) {
    CheckCuda(cudaMemset(data_, value, static_cast<size_t>(bytes_)), "fill of device memory");
    CheckCuda(cudaStreamSynchronize(nullptr), "fill of device memory");
  }
}

DeviceStream::DeviceStream() {
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creation of a CUDA stream");
  stream_ = stream;
}
DeviceStream::~DeviceStream() { cudaStreamDestroy(Native(stream_)); }
void DeviceStream::Synchronize() const {
  CheckCuda(cudaStreamSynchronize(Native(stream_)), "work on the CUDA device");
}
void UploadAsync(const DeviceBuffer& target, const void* source, int64_t bytes, Stream stream) {
  CheckRange(0, bytes, target.bytes());
  CheckCuda(cudaMemcpyAsync(target.data(), source, static_cast<size_t>(bytes),
                            cudaMemcpyHostToDevice, Native(stream)),
            "copy to the device");
}

DeviceGraph::DeviceGraph(const DeviceStream& stream, const std::function<void(Stream)>& work) {
  const cudaStream_t native = Native(stream.get());
  CheckCuda(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal),
            "start of a graph capture");
  cudaGraph_t graph = nullptr;
  try {
    work(stream.get());
  } catch (...) {
    cudaStreamEndCapture(native, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  CheckCuda(cudaStreamEndCapture(native, &graph), "end of a graph capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CheckCuda(status, "instantiation of a CUDA graph");
  graph_ = executable;
}
DeviceGraph::~DeviceGraph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_)); }
void DeviceGraph::Launch(const DeviceStream& stream) const {
  CheckCuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), Native(stream.get())),
            "launch of a CUDA graph");
}

double DeviceMilliseconds(const DeviceStream& stream, const std::function<void(Stream)>& work) {
  struct Event {
    cudaEvent_t event = nullptr;
    Event() { CheckCuda(cudaEventCreate(&event), "creation of a CUDA event"); }
    ~Event() { cudaEventDestroy(event); }
  };
  const Event begin, end;
  CheckCuda(cudaEventRecord(begin.event, Native(stream.get())), "record of a CUDA event");
  work(stream.get());
  CheckCuda(cudaEventRecord(end.event, Native(stream.get())), "record of a CUDA event");
  CheckCuda(cudaEventSynchronize(end.event), "work on the CUDA device");
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "reading of CUDA events");
  return static_cast<double>(milliseconds);
}

void ReadAll(const void* data, int64_t bytes, void* sum, Stream stream) {
  OSCAR_CHECK(bytes % 16 == 0);
  ReadAllKernel<<<132 * 4, 512, 0, Native(stream)>>>(static_cast<const uint4*>(data), bytes / 16,
                                                     static_cast<uint32_t*>(sum));
  CheckCuda(cudaGetLastError(), "launch of the read kernel");
}

}  // namespace oscar
