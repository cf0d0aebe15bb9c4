// How an engine calls the kernels: a prompt is written, then a decode step runs, for one layer.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/device_case.h"
#include "gpu/rotations.h"
#include "oscar/cuda/decode.h"
#include "oscar/cuda/twin.h"
#include "oscar/cuda/write.h"

namespace oscar::test {
namespace {

// Slots below kHistorySlots are of the 2-bit tier, those from there on of the bf16 windows.
constexpr int64_t kHistorySlots = 96, kWindowSlots = 32;
constexpr int64_t kDim = 128, kHeads = 2, kQueryHeads = 8;

// One layer's cache.
struct LayerCache {
  CacheShape shape{kHeads, kDim, 1, DType::kF32};
  QuantisedCache history;
  RowCache window;
};

// Keys and values of `tokens` tokens to their slots, -1 for nowhere: rotated, and in the 2-bit tier
// clipped.
std::vector<WriteJob> TokenJobs(const LayerCache& cache, const BFloat16* k, const BFloat16* v,
                                int64_t tokens, const int32_t* slots, const BFloat16* k_rotation,
                                const BFloat16* v_rotation) {
  WriteJob key;
  key.rows = k;
  key.tokens = tokens;
  key.heads = kHeads;
  key.rotation = k_rotation;
  key.slots = {slots, DType::kI32};
  key.row_slot_offset = kHistorySlots;
  key.codes = cache.history.k_codes;
  key.scales = cache.history.k_scales;
  key.out_rows = cache.window.k;
  key.clip_index = ClipIndexOf(0.96, kDim);
  WriteJob value = key;
  value.rows = v;
  value.rotation = v_rotation;
  value.codes = cache.history.v_codes;
  value.scales = cache.history.v_scales;
  value.out_rows = cache.window.v;
  value.clip_index = ClipIndexOf(0.92, kDim);
  return {key, value};
}

// Queries, rotated like the keys.
WriteJob QueryJob(const BFloat16* q, int64_t tokens, const BFloat16* k_rotation,
                  BFloat16* rotated) {
  WriteJob query;
  query.rows = q;
  query.tokens = tokens;
  query.heads = kQueryHeads;
  query.rotation = k_rotation;
  query.out_rows = rotated;
  return query;
}

DecodeInputs InputsOf(const LayerCache& cache, const BFloat16* rotated_q, const int32_t* history,
                      const int32_t* window, const BFloat16* v_rotation) {
  DecodeInputs in;
  in.q = rotated_q;
  in.quantised = cache.history;
  in.rows = cache.window;
  in.quantised_slots = {history, DType::kI32};
  in.row_slots = {window, DType::kI32};
  in.logit_scale = 1 / std::sqrt(static_cast<float>(kDim));
  in.v_rotation = v_rotation;  // the output comes back in the model's coordinates
  // What wrote the history was done before the copy of the plan began.
  in.quantised_settled = true;
  return in;
}

std::vector<BFloat16> NormalNumbers(Random& random, int64_t rows) {
  std::vector<BFloat16> numbers;
  for (int64_t i = 0; i < rows * kDim; ++i) {
    numbers.push_back(ToBFloat16(static_cast<float>(random.Normal())));
  }
  return numbers;
}

// Two requests with 40 and 17 tokens of history; 4 and 2 of their prompts are in the window, where
// the step adds one to each. The engine pads its batch to three: the third token goes nowhere.
struct Traffic {
  static constexpr int64_t kBatch = 3, kServed = 2;
  std::vector<RequestLengths> lengths = {{40, 5}, {17, 3}};
  std::vector<int32_t> history, window, prompt_slots, step_slots;
  std::vector<BFloat16> prompt_k, prompt_v, step_k, step_v, q, k_rotation, v_rotation;

  Traffic() {
    for (int32_t i = 0; i < 57; ++i) history.push_back(i < 40 ? 95 - i : i - 40);
    for (int32_t i = 0; i < 8; ++i) window.push_back(i < 5 ? 3 * i : 20 + i);
    const auto in_window = [&](size_t i) {
      return static_cast<int32_t>(kHistorySlots) + window[i];
    };
    prompt_slots = history;
    for (const size_t i : {0U, 1U, 2U, 3U, 5U, 6U}) prompt_slots.push_back(in_window(i));
    step_slots = {in_window(4), in_window(7), -1};
    Random random(5);
    for (auto* rows : {&prompt_k, &prompt_v})
      *rows = NormalNumbers(random, PromptTokens() * kHeads);
    for (auto* rows : {&step_k, &step_v}) *rows = NormalNumbers(random, kBatch * kHeads);
    q = NormalNumbers(random, kBatch * kQueryHeads);
    for (auto* matrix : {&k_rotation, &v_rotation}) *matrix = SignedHadamards(random, 1, kDim);
  }
  int64_t PromptTokens() const { return static_cast<int64_t>(prompt_slots.size()); }
};

DecodeShape Shape() { return {LayerCache().shape, kQueryHeads}; }

DecodeResult OnDevice(const Traffic& t) {
  const CacheShape shape = LayerCache().shape;
  const int64_t codes = kHistorySlots * kHeads * shape.CodeBytes();
  const int64_t scales = kHistorySlots * kHeads * shape.ScaleBytes();
  const int64_t rows = kWindowSlots * kHeads * kDim * 2;
  const DeviceBuffer k_codes(codes), v_codes(codes), k_scales(scales), v_scales(scales);
  const DeviceBuffer k_rows(rows), v_rows(rows);
  const LayerCache cache{shape,
                         {k_codes.As<uint8_t>(), v_codes.As<uint8_t>(), k_scales.data(),
                          v_scales.data(), kHistorySlots},
                         {k_rows.As<BFloat16>(), v_rows.As<BFloat16>(), kWindowSlots}};
  const DeviceBuffer r_k = ToDevice(t.k_rotation), r_v = ToDevice(t.v_rotation);
  const DeviceStream stream;  // or the engine's own cudaStream_t

  const DeviceBuffer prompt_k = ToDevice(t.prompt_k), prompt_v = ToDevice(t.prompt_v);
  const DeviceBuffer prompt_slots = ToDevice(t.prompt_slots);
  LaunchWrite(shape,
              TokenJobs(cache, prompt_k.As<BFloat16>(), prompt_v.As<BFloat16>(), t.PromptTokens(),
                        prompt_slots.As<int32_t>(), r_k.As<BFloat16>(), r_v.As<BFloat16>()),
              stream.get());

  DecodeWorkspace workspace(Shape(), Traffic::kBatch);  // one for all layers
  workspace.Plan(t.lengths, stream.get());
  const DeviceBuffer step_k = ToDevice(t.step_k), step_v = ToDevice(t.step_v), q = ToDevice(t.q);
  const DeviceBuffer step_slots = ToDevice(t.step_slots);
  const DeviceBuffer history = ToDevice(t.history), window = ToDevice(t.window);
  const DeviceBuffer rotated_q(Traffic::kBatch * kQueryHeads * kDim * 2);
  const DeviceBuffer o(Traffic::kBatch * kQueryHeads * kDim * 4);
  const DeviceBuffer lse(Traffic::kBatch * kQueryHeads * 4);
  std::vector<WriteJob> step =
      TokenJobs(cache, step_k.As<BFloat16>(), step_v.As<BFloat16>(), Traffic::kBatch,
                step_slots.As<int32_t>(), r_k.As<BFloat16>(), r_v.As<BFloat16>());
  step.push_back(
      QueryJob(q.As<BFloat16>(), Traffic::kBatch, r_k.As<BFloat16>(), rotated_q.As<BFloat16>()));
  LaunchWrite(shape, step, stream.get());
  LaunchDecode(workspace,
               InputsOf(cache, rotated_q.As<BFloat16>(), history.As<int32_t>(),
                        window.As<int32_t>(), r_v.As<BFloat16>()),
               {o.data(), DType::kF32, lse.As<float>()}, stream.get());
  stream.Synchronize();
  constexpr int64_t kRows = Traffic::kServed * kQueryHeads;
  return {FromDevice<float>(o, kRows * kDim), FromDevice<float>(lse, kRows)};
}

// The same with the CPU twins and the float64 reference.
DecodeResult OnHost(const Traffic& t) {
  const CacheShape shape = LayerCache().shape;
  const auto bytes = [](int64_t count) { return std::vector<uint8_t>(static_cast<size_t>(count)); };
  auto k_codes = bytes(kHistorySlots * kHeads * shape.CodeBytes()), v_codes = k_codes;
  auto k_scales = bytes(kHistorySlots * kHeads * shape.ScaleBytes()), v_scales = k_scales;
  std::vector<BFloat16> k_rows(kWindowSlots * kHeads * kDim), v_rows = k_rows;
  const LayerCache cache{
      shape,
      {k_codes.data(), v_codes.data(), k_scales.data(), v_scales.data(), kHistorySlots},
      {k_rows.data(), v_rows.data(), kWindowSlots}};
  WriteTwin(shape, TokenJobs(cache, t.prompt_k.data(), t.prompt_v.data(), t.PromptTokens(),
                             t.prompt_slots.data(), t.k_rotation.data(), t.v_rotation.data()));
  std::vector<BFloat16> rotated_q(t.q.size());
  std::vector<WriteJob> step =
      TokenJobs(cache, t.step_k.data(), t.step_v.data(), Traffic::kBatch, t.step_slots.data(),
                t.k_rotation.data(), t.v_rotation.data());
  step.push_back(QueryJob(t.q.data(), Traffic::kBatch, t.k_rotation.data(), rotated_q.data()));
  WriteTwin(shape, step);
  constexpr size_t kRows = Traffic::kServed * kQueryHeads;
  DecodeResult result{std::vector<float>(kRows * kDim), std::vector<float>(kRows)};
  DecodeReference(
      Shape(), t.lengths,
      InputsOf(cache, rotated_q.data(), t.history.data(), t.window.data(), t.v_rotation.data()),
      {result.o.data(), DType::kF32, result.lse.data()});
  return result;
}

TEST(ServeStepGpu, PromptsThenADecodeStep) {
  OSCAR_NEED_DEVICE();
  const Traffic traffic;
  const Distance distance = Compare(OnDevice(traffic), OnHost(traffic));
  // Rotated rows may be one bf16 step, 2^-8, from the twin's, in a few channels, and a code of such
  // a channel another one: less than four steps in all.
  EXPECT_LE(distance.output, 0x1p-6);
  EXPECT_LE(distance.lse, 0x1p-6);
}

}  // namespace
}  // namespace oscar::test
