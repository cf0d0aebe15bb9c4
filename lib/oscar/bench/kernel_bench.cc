#include "oscar/bench/kernel_bench.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "oscar/bench/measure.h"
#include "oscar/bench/write_bench.h"
#include "oscar/core/error.h"
#include "oscar/cuda/device_name.h"

namespace oscar {
namespace {

constexpr int kReplays = 21;
constexpr int64_t kReadBytes = int64_t{4} << 30;

}  // namespace

std::unique_ptr<BenchDevice> OpenBenchDevice(const std::string& device) {
  if (CudaDeviceIndex(device) < 0) {
    throw Error(ErrorCode::kUsage,
                "unknown device '" + device + "': expected cuda or cuda:<index>");
  }
  return std::make_unique<KernelBench>(UseCudaDevice(device, ""));
}

KernelBench::KernelBench(int device) : device_(device), info_(QueryDevice(device)) {}

double KernelBench::ReadBandwidth() {
  if (read_bandwidth_ > 0) return read_bandwidth_;
  DeviceBuffer data(kReadBytes), sum(16);
  const std::vector<BFloat16> block = NormalRows(8 << 20, 9, 1);
  const auto bytes = static_cast<int64_t>(block.size()) * 2;
  for (int64_t at = 0; at < kReadBytes; at += bytes) data.Upload(block.data(), bytes, at);
  const Spread time = MeasureLaunches(stream_, 4, kReplays, [&](Stream s, int) {
    ReadAll(data.data(), kReadBytes, sum.data(), s);
  });
  read_bandwidth_ = static_cast<double>(kReadBytes) / time.low;
  return read_bandwidth_;
}

CachePool& KernelBench::PoolFor(const DecodeCase& c) {
  std::unique_ptr<CachePool>& pool = pools_[c.format == CacheFormat::kInt2 ? 1 : 0];
  const int64_t copies = CopiesBeyondL2(c.Bytes(), info_.l2_bytes);
  if (pool == nullptr || !pool->Serves(c, copies)) {
    pool.reset();  // before the new one is allocated
    pool = std::make_unique<CachePool>(c, copies);
  }
  pool->Order(c.shuffled);
  return *pool;
}

Spread KernelBench::Decode(const DecodeCase& c) {
  const CachePool& pool = PoolFor(c);
  DecodeWorkspace workspace(c.shape, c.batch);
  workspace.Plan(std::vector<RequestLengths>(static_cast<size_t>(c.batch), c.Each()),
                 stream_.get());
  const int64_t outputs = c.batch * c.shape.q_heads * c.shape.cache.dim;
  const std::vector<BFloat16> rows = NormalRows(outputs, 6, 1);
  const DeviceBuffer q = Uploaded(rows.data(), outputs * 2), o(outputs * 2);
  const DeviceBuffer lse(c.batch * c.shape.q_heads * 4);
  DeviceBuffer rotation;
  if (c.rotated) {
    const int64_t dim = c.shape.cache.dim;
    const std::vector<BFloat16> matrix =
        NormalRows(dim * dim, 7, 1 / std::sqrt(static_cast<double>(dim)));
    rotation = Uploaded(matrix.data(), dim * dim * 2);
  }
  stream_.Synchronize();
  const int launches = LaunchesFor(c.Bytes(), CopiesBeyondL2(c.Bytes(), info_.l2_bytes));
  return MeasureLaunches(stream_, launches, kReplays, [&](Stream s, int i) {
    DecodeInputs in = pool.Inputs(c, i);
    in.q = q.As<BFloat16>();
    // Without a rotation this is null.
    in.v_rotation = rotation.As<BFloat16>();
    in.quantised_settled = in.rows_settled = true;  // nothing writes
    LaunchDecode(workspace, in, {o.data(), DType::kBF16, lse.As<float>()}, s);
  });
}

Spread KernelBench::Write(const WriteCase& c) { return TimeWrite(c, info_, stream_); }

double KernelBench::Plan(const DecodeCase& c) {
  DecodeWorkspace workspace(c.shape, c.batch);
  const std::vector<RequestLengths> lengths(static_cast<size_t>(c.batch), c.Each());
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    times.push_back(1000 *
                    DeviceMilliseconds(stream_, [&](Stream s) { workspace.Plan(lengths, s); }));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

std::optional<Spread> KernelBench::Sdpa(const DecodeCase& c, SdpaKernel kernel) {
  if (!TorchPartAvailable()) return std::nullopt;
  return TimeSdpa(c, kernel, PoolFor(c), info_, device_, stream_);
}

StepTimes KernelBench::Step(const StepCase& c) {
  return TimeStep(c, PoolFor(c.attention), info_, device_, stream_);
}

}  // namespace oscar
