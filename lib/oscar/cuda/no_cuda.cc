// The device side of the module in a build without CUDA: the same symbols, no device.
#include "oscar/core/error.h"
#include "oscar/cuda/decode.h"
#include "oscar/cuda/device.h"
#include "oscar/cuda/write.h"

namespace oscar {
namespace {

[[noreturn]] void NoDevice() {
  throw Error(ErrorCode::kDevice, "no CUDA device: this build has no CUDA kernels",
              "configure with -DOSCAR_CUDA=ON where the CUDA toolkit is installed");
}

}  // namespace

bool HasCuda() { return false; }
int DeviceCount() { return 0; }
void UseDevice(int /*device*/) { NoDevice(); }
int CurrentDevice() { NoDevice(); }
DeviceInfo QueryDevice(int /*device*/) { NoDevice(); }

DeviceBuffer::DeviceBuffer(int64_t /*bytes*/) { NoDevice(); }
DeviceBuffer::~DeviceBuffer() = default;
DeviceBuffer::DeviceBuffer(DeviceBuffer&& /*other*/) noexcept {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& /*other*/) noexcept { return *this; }
void DeviceBuffer::Upload(const void* /*source*/, int64_t /*bytes*/, int64_t /*offset*/) {
  NoDevice();
}
void DeviceBuffer::Download(void* /*target*/, int64_t /*bytes*/, int64_t /*offset*/) const {
  NoDevice();
}
void DeviceBuffer::Fill(uint8_t /*value*/) {}

DeviceStream::DeviceStream() { NoDevice(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::Synchronize() const { NoDevice(); }
void UploadAsync(const DeviceBuffer& /*target*/, const void* /*source*/, int64_t /*bytes*/,
                 Stream /*stream*/) {
  NoDevice();
}

DeviceGraph::DeviceGraph(const DeviceStream& /*stream*/,
                         const std::function<void(Stream)>& /*work*/) {
  NoDevice();
}
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::Launch(const DeviceStream& /*stream*/) const { NoDevice(); }

double DeviceMilliseconds(const DeviceStream& /*stream*/,
                          const std::function<void(Stream)>& /*work*/) {
  NoDevice();
}
void ReadAll(const void* /*data*/, int64_t /*bytes*/, void* /*sum*/, Stream /*stream*/) {
  NoDevice();
}

void LaunchDecode(const DecodeWorkspace& /*workspace*/, const DecodeInputs& /*inputs*/,
                  const DecodeOutputs& /*outputs*/, Stream /*stream*/) {
  NoDevice();
}
void LaunchWrite(const CacheShape& /*shape*/, std::span<const WriteJob> /*jobs*/,
                 Stream /*stream*/) {
  NoDevice();
}

}  // namespace oscar
