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

// One layer's cache, on the device.
struct LayerCache {
  CacheShape shape{kHeads, kDim, 1, DType::kF32};
  DeviceBuffer k_codes{kHistorySlots * kHeads * shape.CodeBytes()};
  DeviceBuffer v_codes{kHistorySlots * kHeads * shape.CodeBytes()};
  DeviceBuffer k_scales{kHistorySlots * kHeads * shape.ScaleBytes()};
  DeviceBuffer v_scales{kHistorySlots * kHeads * shape.ScaleBytes()};
  DeviceBuffer k_rows{kWindowSlots * kHeads * kDim * 2};
  DeviceBuffer v_rows{kWindowSlots * kHeads * kDim * 2};
};

// Keys and values of `tokens` tokens to their slots, -1 for nowhere: rotated, and in the 2-bit tier
// clipped.
std::vector<WriteJob> TokenJobs(const LayerCache& cache, const BFloat16* k, const BFloat16* v,
                                int64_t tokens, const void* slots, const BFloat16* k_rotation,
                                const BFloat16* v_rotation) {
  WriteJob key;
  key.rows = k;
  key.tokens = tokens;
  key.heads = kHeads;
  key.rotation = k_rotation;
  key.slots = {slots, DType::kI32};
  key.row_slot_offset = kHistorySlots;
  key.codes = cache.k_codes.As<uint8_t>();
  key.scales = cache.k_scales.data();
  key.out_rows = cache.k_rows.As<BFloat16>();
  key.clip_index = ClipIndexOf(0.96, kDim);
  WriteJob value = key;
  value.rows = v;
  value.rotation = v_rotation;
  value.codes = cache.v_codes.As<uint8_t>();
  value.scales = cache.v_scales.data();
  value.out_rows = cache.v_rows.As<BFloat16>();
  value.clip_index = ClipIndexOf(0.92, kDim);
  return {key, value};
}

DecodeInputs InputsOf(const LayerCache& cache, const BFloat16* q, const void* history,
                      const void* window, const BFloat16* v_rotation) {
  DecodeInputs in;
  in.q = q;
  in.quantised = {cache.k_codes.As<uint8_t>(), cache.v_codes.As<uint8_t>(), cache.k_scales.data(),
                  cache.v_scales.data(), kHistorySlots};
  in.rows = {cache.k_rows.As<BFloat16>(), cache.v_rows.As<BFloat16>(), kWindowSlots};
  in.quantised_slots = {history, DType::kI32};
  in.row_slots = {window, DType::kI32};
  in.logit_scale = 1 / std::sqrt(static_cast<float>(kDim));
  in.v_rotation = v_rotation;  // the output comes back in the model's coordinates
  // What wrote the history was done before the copy of the plan began.
  in.quantised_settled = true;
  return in;
}

// The float64 reference on what is in the device's cache.
DecodeResult ReferenceOn(const LayerCache& cache, const DecodeShape& shape,
                         const std::vector<RequestLengths>& lengths, const std::vector<BFloat16>& q,
                         const std::vector<int32_t>& history, const std::vector<int32_t>& window,
                         const std::vector<BFloat16>& v_rotation) {
  auto k_codes = FromDevice<uint8_t>(cache.k_codes, cache.k_codes.bytes());
  auto v_codes = FromDevice<uint8_t>(cache.v_codes, cache.v_codes.bytes());
  auto k_scales = FromDevice<uint8_t>(cache.k_scales, cache.k_scales.bytes());
  auto v_scales = FromDevice<uint8_t>(cache.v_scales, cache.v_scales.bytes());
  auto k_rows = FromDevice<BFloat16>(cache.k_rows, cache.k_rows.bytes() / 2);
  auto v_rows = FromDevice<BFloat16>(cache.v_rows, cache.v_rows.bytes() / 2);
  DecodeInputs in = InputsOf(cache, q.data(), history.data(), window.data(), v_rotation.data());
  in.quantised = {k_codes.data(), v_codes.data(), k_scales.data(), v_scales.data(), kHistorySlots};
  in.rows = {k_rows.data(), v_rows.data(), kWindowSlots};
  const size_t rows = lengths.size() * static_cast<size_t>(kQueryHeads);
  DecodeResult result{std::vector<float>(rows * static_cast<size_t>(kDim)),
                      std::vector<float>(rows)};
  DecodeReference(shape, lengths, in, {result.o.data(), DType::kF32, result.lse.data()});
  return result;
}

std::vector<BFloat16> NormalNumbers(Random& random, int64_t count) {
  std::vector<BFloat16> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(ToBFloat16(static_cast<float>(random.Normal())));
  }
  return numbers;
}

TEST(ServeStepGpu, PromptsThenADecodeStep) {
  OSCAR_NEED_DEVICE();
  Random random(5);
  const DecodeShape shape{{kHeads, kDim, 1, DType::kF32}, kQueryHeads};
  const LayerCache cache;
  const std::vector<BFloat16> r_k = SignedHadamards(random, 1, kDim),
                              r_v = SignedHadamards(random, 1, kDim);
  const DeviceBuffer k_rotation = ToDevice(r_k), v_rotation = ToDevice(r_v);
  const DeviceStream stream;  // or the engine's own cudaStream_t

  // Two prompts: 40 and 17 tokens of history, 4 and 2 in the window.
  const std::vector<RequestLengths> lengths = {{40, 5}, {17, 3}};
  std::vector<int32_t> history, window, prompt_slots;
  for (int32_t i = 0; i < 57; ++i) history.push_back(i < 40 ? 95 - i : i - 40);
  prompt_slots = history;
  for (int32_t i = 0; i < 8; ++i) window.push_back(i < 5 ? 3 * i : 20 + i);
  for (const int i : {0, 1, 2, 3, 5, 6})
    prompt_slots.push_back(kHistorySlots + window[static_cast<size_t>(i)]);
  const int64_t prompt_tokens = static_cast<int64_t>(prompt_slots.size());
  const auto rows = [&](int64_t heads_and_tokens) {
    return ToDevice(NormalNumbers(random, heads_and_tokens * kDim));
  };
  const DeviceBuffer prompt_k = rows(prompt_tokens * kHeads),
                     prompt_v = rows(prompt_tokens * kHeads), slots = ToDevice(prompt_slots);
  const auto prompt =
      TokenJobs(cache, prompt_k.As<BFloat16>(), prompt_v.As<BFloat16>(), prompt_tokens,
                slots.data(), k_rotation.As<BFloat16>(), v_rotation.As<BFloat16>());
  LaunchWrite(cache.shape, prompt, stream.get());

  // A step: the new tokens to the windows, queries rotated like the keys, then attention. The batch
  // of the graph is three, of which two are served: the third token goes nowhere.
  const std::vector<int32_t> new_slots = {static_cast<int32_t>(kHistorySlots + window[4]),
                                          static_cast<int32_t>(kHistorySlots + window[7]), -1};
  const DeviceBuffer new_k = rows(3 * kHeads), new_v = rows(3 * kHeads), to = ToDevice(new_slots);
  const DeviceBuffer q = rows(3 * kQueryHeads), rotated_q(3 * kQueryHeads * kDim * 2);
  std::vector<WriteJob> step =
      TokenJobs(cache, new_k.As<BFloat16>(), new_v.As<BFloat16>(), 3, to.data(),
                k_rotation.As<BFloat16>(), v_rotation.As<BFloat16>());
  WriteJob query;
  query.rows = q.As<BFloat16>();
  query.tokens = 3;
  query.heads = kQueryHeads;
  query.rotation = k_rotation.As<BFloat16>();
  query.out_rows = rotated_q.As<BFloat16>();
  step.push_back(query);
  DecodeWorkspace workspace(shape, 3);  // one for all layers
  workspace.Plan(lengths, stream.get());
  const DeviceBuffer history_slots = ToDevice(history), window_slots = ToDevice(window);
  const DeviceBuffer o(3 * kQueryHeads * kDim * 4), lse(3 * kQueryHeads * 4);
  LaunchWrite(cache.shape, step, stream.get());
  LaunchDecode(workspace,
               InputsOf(cache, rotated_q.As<BFloat16>(), history_slots.data(), window_slots.data(),
                        v_rotation.As<BFloat16>()),
               {o.data(), DType::kF32, lse.As<float>()}, stream.get());
  stream.Synchronize();

  const int64_t served = 2 * kQueryHeads;
  const DecodeResult found{FromDevice<float>(o, served * kDim), FromDevice<float>(lse, served)};
  const Distance distance = Compare(
      found, ReferenceOn(cache, shape, lengths, FromDevice<BFloat16>(rotated_q, served * kDim),
                         history, window, r_v));
  EXPECT_LE(distance.output, 1e-3);
  EXPECT_LE(distance.lse, 1e-4);
}

}  // namespace
}  // namespace oscar::test
