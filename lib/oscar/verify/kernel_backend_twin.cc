#include <cstring>
#include <map>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/cuda/twin.h"
#include "oscar/verify/kernel_backend.h"

namespace oscar {
namespace {

// Shares that the twin of a request is cut into, so that partial results are merged as on a GPU.
constexpr int64_t kTwinBlocks = 4;

class TwinBackend final : public KernelBackend {
 public:
  explicit TwinBackend(int threads) : threads_(threads) {}

  std::string name() const override { return "twin"; }
  Value Describe() const override { return Value::Object{{"name", "CPU twins of the kernels"}}; }

  void* Put(const void* source, int64_t bytes) override {
    void* const memory = Allocate(bytes);
    if (bytes > 0) std::memcpy(memory, source, static_cast<size_t>(bytes));  // nothing may be null
    return memory;
  }
  void* Allocate(int64_t bytes) override {
    std::vector<uint8_t> memory(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 0xff);
    void* const pointer = memory.data();
    memory_.emplace(pointer, std::move(memory));
    return pointer;
  }
  void Get(const void* pointer, void* target, int64_t bytes) const override {
    OSCAR_CHECK(static_cast<size_t>(bytes) <= memory_.at(pointer).size());
    if (bytes > 0) std::memcpy(target, pointer, static_cast<size_t>(bytes));
  }
  void Release() override { memory_.clear(); }

  void Write(const CacheShape& shape, std::span<const WriteJob> jobs) override {
    CheckWriteJobs(shape, jobs);
    // Jobs write to different places, or nothing to the same.
    ParallelFor(static_cast<int64_t>(jobs.size()), threads_,
                [&](int64_t i) { WriteTwin(shape, jobs.subspan(static_cast<size_t>(i), 1)); });
  }

  void Decode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
              const DecodeInputs& inputs, const DecodeOutputs& outputs) override {
    ForEachRequest(
        shape, lengths, inputs, outputs, threads_,
        [&](std::span<const RequestLengths> one, const DecodeInputs& in, const DecodeOutputs& out) {
          DecodeTwin(shape, PlanDecode(shape, one, kTwinBlocks), in, out);
        });
  }

  std::optional<double> TimeWrite(const CacheShape& /*shape*/,
                                  std::span<const WriteJob> /*jobs*/) override {
    return std::nullopt;
  }
  std::optional<double> TimeDecode(const DecodeShape& /*shape*/,
                                   std::span<const RequestLengths> /*lengths*/,
                                   const DecodeInputs& /*inputs*/,
                                   const DecodeOutputs& /*outputs*/) override {
    return std::nullopt;
  }

 private:
  int threads_;
  std::map<const void*, std::vector<uint8_t>> memory_;
};

const void* Advance(const SlotList& list, int64_t entries) {
  if (list.data == nullptr) return nullptr;
  return static_cast<const char*>(list.data) + entries * static_cast<int64_t>(DTypeSize(list.type));
}

}  // namespace

void ForEachRequest(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                    const DecodeInputs& inputs, const DecodeOutputs& outputs, int threads,
                    const std::function<void(std::span<const RequestLengths>, const DecodeInputs&,
                                             const DecodeOutputs&)>& body) {
  OSCAR_CHECK(outputs.o_type == DType::kF32);
  std::vector<RequestLengths> begin(lengths.size() + 1);
  for (size_t r = 0; r < lengths.size(); ++r) {
    begin[r + 1] = {begin[r].quantised + lengths[r].quantised, begin[r].rows + lengths[r].rows};
  }
  ParallelFor(static_cast<int64_t>(lengths.size()), threads, [&](int64_t r) {
    const auto at = static_cast<size_t>(r);
    DecodeInputs in = inputs;
    in.q += r * shape.q_heads * shape.cache.dim;
    in.quantised_slots.data = Advance(inputs.quantised_slots, begin[at].quantised);
    in.row_slots.data = Advance(inputs.row_slots, begin[at].rows);
    DecodeOutputs out = outputs;
    out.o = static_cast<float*>(outputs.o) + r * shape.q_heads * shape.cache.dim;
    if (out.lse != nullptr) out.lse += r * shape.q_heads;
    body(lengths.subspan(at, 1), in, out);
  });
}

std::unique_ptr<KernelBackend> MakeTwinBackend(int threads) {
  return std::make_unique<TwinBackend>(threads);
}

}  // namespace oscar
