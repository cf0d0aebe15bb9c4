// Rows of a tile in, rotated words out. Device code.
//
// A warpgroup of four warps takes a tile of 64 rows, each warp 16 of them. A warp copies its rows
// into shared memory of its own, kStages tiles ahead, and multiplies them with the rotation that
// the block keeps in shared memory (write_wgmma.cuh). Lane (g, t) then holds channels
// 8 n + 2 t + {0, 1} of rows g and g + 8, rounded to bf16, in words that pair the two rows:
// x[2 n + c] has channel 8 n + 2 t + c of row g below and of row g + 8 above.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_wgmma.cuh"

namespace oscar {

template <int kDim>
struct WriteTraits {
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static constexpr int kWarps = kDim <= 128 ? 16 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kGroupCount = kWarps / kWriteGroupWarps;
  static constexpr int kMinBlocks = 1;
  static constexpr int kStages = kDim <= 128 ? 2 : 1;
  static constexpr int kPanelBytes = kDim * kPanelRowBytes;
  static constexpr int kRotationBytes = kDim * kDim * 2;
  static constexpr int kWarpBytes = kWriteWarpRows * kDim * 2;  // rows of one warp
  static constexpr int kSharedBytes = kRotationBytes + kWarps * kStages * kWarpBytes;
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 227 * 1024);
};

// A slot number as loaded, 4 or 8 bytes. It is made a number where it is used, so that nothing
// waits for the load before.
struct RawSlot {
  uint32_t low = 0, high = 0;
  __device__ __forceinline__ int64_t Number(int log2_bytes) const {
    return log2_bytes == 3 ? static_cast<int64_t>(low | (static_cast<uint64_t>(high) << 32))
                           : static_cast<int64_t>(static_cast<int32_t>(low));
  }
};

__device__ __forceinline__ RawSlot LoadSlot(const char* slots, int index, int log2_bytes) {
  const char* const at = slots + (static_cast<int64_t>(index) << log2_bytes);
  RawSlot slot;
  slot.low = *reinterpret_cast<const uint32_t*>(at);
  if (log2_bytes == 3) slot.high = *reinterpret_cast<const uint32_t*>(at + 4);
  return slot;
}

struct TokenHead {
  int32_t token, head;
};

__device__ __forceinline__ TokenHead Locate(const WriteJobParams& job, int rotation, int index) {
  const int token = static_cast<int>(
      __umulhi(2 * static_cast<uint32_t>(index), job.divide_factor) >> job.divide_shift);
  return {token, index + (rotation - token) * job.heads_per_rotation};
}

// Starts the copy of the rotation into panels.
template <int kDim>
__device__ __forceinline__ void CopyRotation(const uint16_t* rotation, uint32_t shared) {
  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kDim * kChunks;
       i += WriteTraits<kDim>::kThreads) {
    const int channel = i / kChunks, chunk = i % kChunks;
    const int offset = chunk / 8 * WriteTraits<kDim>::kPanelBytes + channel * kPanelRowBytes +
                       (((chunk ^ channel) & 7) << 4);
    CopyAsync<16>(shared + static_cast<uint32_t>(offset), rotation + channel * kDim + 8 * chunk,
                  true);
  }
}

// Starts the copy of 16 rows from row `first` of the job's rotation on into the warp's shared
// memory; 16-byte chunks are exchanged within a row so that eight rows at one chunk meet eight bank
// groups. Rows past the end and those without a source become zeros.
template <int kDim>
__device__ __forceinline__ void CopyRows(const WriteJobParams& job, int rotation, int first,
                                         uint32_t target) {
  constexpr int kChunks = kDim / 8;
  constexpr int kRowsAtOnce = 32 / kChunks > 0 ? 32 / kChunks : 1;
  constexpr int kCopies = kWriteWarpRows * kChunks / 32;
  static_assert(kChunks <= 32);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int chunk = lane % kChunks, own_row = lane / kChunks;
  // Rows begin at multiples of their size, so that exchanging chunks is an exclusive or of the
  // address.
  const uint32_t own =
      target + static_cast<uint32_t>(own_row * kDim * 2 + ((chunk ^ (own_row & 7)) << 4));
  const auto place = [own](int i) {
    return (own ^ static_cast<uint32_t>((i * kRowsAtOnce & 7) << 4)) +
           static_cast<uint32_t>(i * kRowsAtOnce * kDim * 2);
  };
  if (job.contiguous && first + kWriteWarpRows <= job.rows_per_rotation) {
    const uint16_t* const source =
        job.rows + static_cast<int64_t>(first) * kDim + own_row * kDim + 8 * chunk;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      CopyAsync<16>(place(i), source + i * kRowsAtOnce * kDim, true);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kCopies; ++i) {
    const int row = i * kRowsAtOnce + own_row;
    const int index = first + row;
    bool exists = index < job.rows_per_rotation;
    int64_t source = exists ? index : 0;
    if (!job.contiguous && exists) {
      const TokenHead at = Locate(job, rotation, index);
      const int64_t block = job.source_slots == nullptr
                                ? at.token
                                : LoadSlot(job.source_slots, at.token, job.source_slot_log2)
                                      .Number(job.source_slot_log2);
      exists = block >= 0;
      source = exists ? block * job.heads + at.head : 0;
    }
    CopyAsync<16>(place(i), job.rows + source * kDim + 8 * chunk, exists);
  }
}

// Words of the unrotated rows.
template <int kDim>
__device__ __forceinline__ void LoadRows(uint32_t tile, uint32_t (&x)[kDim / 4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    uint32_t pair[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      asm volatile(
          "ld.shared.u32 %0, [%1];"
          : "=r"(pair[r])
          : "r"(tile + static_cast<uint32_t>((g + 8 * r) * kDim * 2 + ((n ^ g) << 4) + 4 * t))
          : "memory");
    }
    x[2 * n] = __byte_perm(pair[0], pair[1], 0x5410);
    x[2 * n + 1] = __byte_perm(pair[0], pair[1], 0x7632);
  }
}

// Words of the rows times the rotation. `after_reads` runs once the tile has been read, while the
// last multiplies are under way.
template <int kDim, typename AfterReads>
__device__ __forceinline__ void RotateRows(uint32_t tile, uint32_t rotation,
                                           uint32_t (&x)[kDim / 4], AfterReads after_reads) {
  constexpr int kColumns = kDim < 128 ? kDim : 128;  // of one multiply
  constexpr int kSteps = kColumns / 16;              // of input channels held in registers
  constexpr int kBlocks = kDim / kColumns;
  using Traits = WriteTraits<kDim>;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int matrix = lane >> 3, row = lane & 7;
  const uint32_t own = tile + static_cast<uint32_t>(((matrix & 1) * 8 + row) * kDim * 2 +
                                                    ((row ^ (matrix >> 1)) << 4));
  const uint32_t whole = RotationLowerHalf(rotation, Traits::kPanelBytes);
#pragma unroll
  for (int out = 0; out < kBlocks; ++out) {
    float sum[kColumns / 8][4];
#pragma unroll
    for (int in = 0; in < kBlocks; ++in) {
      uint32_t a[kSteps][4];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        LoadMatrix4(a[s], own ^ static_cast<uint32_t>((in * kSteps + s) << 5));
      }
      BeginMultiplies();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        constexpr uint32_t kStepUnits = 16 * kPanelRowBytes / 16;
        const auto from =
            static_cast<uint32_t>(out * kColumns / kPanelColumns * Traits::kPanelBytes / 16) +
            static_cast<uint32_t>(in * kSteps + s) * kStepUnits;
        MultiplyGroup<kColumns / 8>(sum, a[s], RotationDescriptor(whole + from), in + s > 0);
      }
      EndMultiplies();
      if (out == kBlocks - 1 && in == kBlocks - 1) after_reads();
      WaitMultiplies();
    }
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int word = 2 * (out * kColumns / 8 + n);
      x[word] = PackBFloat16(sum[n][0], sum[n][2]);
      x[word + 1] = PackBFloat16(sum[n][1], sum[n][3]);
    }
  }
}

}  // namespace oscar
