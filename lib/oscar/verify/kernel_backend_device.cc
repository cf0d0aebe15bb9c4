#include <algorithm>
#include <map>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/verify/kernel_backend.h"

namespace oscar {
namespace {

constexpr int kLaunchesPerGraph = 8;
constexpr int kReplays = 7;

class DeviceBackend final : public KernelBackend {
 public:
  explicit DeviceBackend(int device) : device_(device) {}

  std::string name() const override { return "cuda"; }
  Value Describe() const override {
    const DeviceInfo info = QueryDevice(device_);
    return Value::Object{{"name", info.name},
                         {"index", device_},
                         {"multiprocessors", info.multiprocessors},
                         {"memory_bytes", info.memory_bytes},
                         {"l2_bytes", info.l2_bytes},
                         {"driver", info.driver_version},
                         {"runtime", info.runtime_version}};
  }

  void* Put(const void* source, int64_t bytes) override {
    DeviceBuffer& buffer = Add(bytes);
    if (bytes > 0) buffer.Upload(source, bytes);
    return buffer.data();
  }
  void* Allocate(int64_t bytes) override {
    DeviceBuffer& buffer = Add(bytes);
    buffer.Fill(0xff);
    return buffer.data();
  }
  void Get(const void* pointer, void* target, int64_t bytes) const override {
    if (bytes > 0) memory_.at(pointer).Download(target, bytes);
  }
  void Release() override { memory_.clear(); }

  void Write(const CacheShape& shape, std::span<const WriteJob> jobs) override {
    LaunchWrite(shape, jobs, stream_.get());
    stream_.Synchronize();
  }
  void Decode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
              const DecodeInputs& inputs, const DecodeOutputs& outputs) override {
    DecodeWorkspace& workspace = Planned(shape, lengths);
    LaunchDecode(workspace, inputs, outputs, stream_.get());
    stream_.Synchronize();
  }

  std::optional<double> TimeWrite(const CacheShape& shape,
                                  std::span<const WriteJob> jobs) override {
    return Median([&](Stream stream) { LaunchWrite(shape, jobs, stream); });
  }
  std::optional<double> TimeDecode(const DecodeShape& shape,
                                   std::span<const RequestLengths> lengths,
                                   const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs) override {
    const DecodeWorkspace& workspace = Planned(shape, lengths);
    return Median([&](Stream stream) { LaunchDecode(workspace, inputs, outputs, stream); });
  }

 private:
  DeviceBuffer& Add(int64_t bytes) {
    DeviceBuffer buffer(std::max<int64_t>(bytes, 16));
    const void* const pointer = buffer.data();
    return memory_.emplace(pointer, std::move(buffer)).first->second;
  }

  DecodeWorkspace& Planned(const DecodeShape& shape, std::span<const RequestLengths> lengths) {
    workspace_ = std::make_unique<DecodeWorkspace>(
        shape, std::max<int64_t>(1, static_cast<int64_t>(lengths.size())));
    workspace_->Plan(lengths, stream_.get());
    stream_.Synchronize();
    return *workspace_;
  }

  double Median(const std::function<void(Stream)>& work) const {
    const DeviceGraph graph(stream_, [&](Stream stream) {
      for (int i = 0; i < kLaunchesPerGraph; ++i) work(stream);
    });
    graph.Launch(stream_);
    std::vector<double> times;
    for (int i = 0; i < kReplays; ++i) {
      times.push_back(DeviceMilliseconds(stream_, [&](Stream) { graph.Launch(stream_); }) /
                      kLaunchesPerGraph);
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

  int device_;
  DeviceStream stream_;
  std::unique_ptr<DecodeWorkspace> workspace_;
  std::map<const void*, DeviceBuffer> memory_;
};

}  // namespace

std::unique_ptr<KernelBackend> MakeDeviceBackend(int device) {
  return std::make_unique<DeviceBackend>(device);
}

}  // namespace oscar
