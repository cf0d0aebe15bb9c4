#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/cuda/decode.h"

namespace oscar {

DecodeWorkspace::DecodeWorkspace(const DecodeShape& shape, int64_t max_requests)
    : shape_(shape), max_requests_(max_requests) {
  CheckDecodeShape(shape);
  if (max_requests < 1) {
    throw Error(ErrorCode::kUsage, "a decode workspace for " + std::to_string(max_requests) +
                                       " requests: at least 1 is needed");
  }
  blocks_ = PlanBlocks(shape, QueryDevice(CurrentDevice()).multiprocessors);
  // With fewer heads per block there are more pieces, and in all no more rows of partial results.
  const int64_t most = MostHeadsPerBlock(shape), least = LeastHeadsPerBlock(shape);
  const auto pieces = [&](int64_t heads) {
    return MaxPieces(max_requests, shape.cache.heads / heads, blocks_);
  };
  const int64_t rows = pieces(most) * most * shape.GroupSize();
  pieces_ = DeviceBuffer((blocks_ + pieces(least)) * static_cast<int64_t>(sizeof(PlanPiece)));
  begins_ = DeviceBuffer(static_cast<int64_t>(sizeof(PlanHead)) +
                         (max_requests * shape.cache.heads / least + 1) * 4);
  partial_o_ = DeviceBuffer(rows * shape.cache.dim * 4);
  partial_sums_ = DeviceBuffer(rows * 8);
  unrotated_ = DeviceBuffer(max_requests * shape.q_heads * shape.cache.dim * 4);
}

void DecodeWorkspace::Plan(std::span<const RequestLengths> lengths, Stream stream) {
  SetPlan(PlanDecode(shape_, lengths, blocks_), stream);
}

void DecodeWorkspace::SetPlan(DecodePlan plan, Stream stream) {
  CheckPlan(plan, shape_);
  const int64_t capacity = MaxPieces(max_requests_, plan.head_blocks, blocks_);
  if (plan.requests > max_requests_ || plan.blocks != blocks_ || plan.partials() > capacity) {
    throw Error(ErrorCode::kUsage,
                "a plan of " + std::to_string(plan.requests) + " requests in " +
                    std::to_string(plan.partials()) + " pieces on " + std::to_string(plan.blocks) +
                    " blocks does not fit a workspace for " + std::to_string(max_requests_) +
                    " requests, " + std::to_string(capacity) + " pieces and " +
                    std::to_string(blocks_) + " blocks");
  }
  plan_ = std::move(plan);
  const PlanHead head = HeadOf(plan_, shape_);
  begins_host_ = {head.requests, head.heads_log2};
  begins_host_.insert(begins_host_.end(), plan_.partial_begin.begin(), plan_.partial_begin.end());
  UploadAsync(begins_, begins_host_.data(), static_cast<int64_t>(begins_host_.size()) * 4, stream);
  pieces_host_ = PiecesForDevice(plan_);
  UploadAsync(pieces_, pieces_host_.data(),
              static_cast<int64_t>(pieces_host_.size() * sizeof(PlanPiece)), stream);
}

void DecodeWorkspace::PoisonPartials(uint8_t value) {
  partial_o_.Fill(value);
  partial_sums_.Fill(value);
  unrotated_.Fill(value);
}

}  // namespace oscar
