#include "oscar/cuda/plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/cuda/decode_limits.h"

namespace oscar {
namespace {

// Tokens of one piece at most: sums inside the tensor cores are truncated, so they are kept short.
constexpr int64_t kMaxPieceTokens = 65536;

struct Segment {
  int64_t slot_begin;
  int64_t tokens;
  int64_t tile_tokens;
  int64_t tile_cost;  // bytes of one full tile
  Tier tier;

  int64_t Tiles() const { return (tokens + tile_tokens - 1) / tile_tokens; }
  int64_t Cost() const { return Tiles() * tile_cost; }
};

// What one request and block of heads read: at most one segment of either tier.
struct Job {
  int32_t request;
  int32_t head_block;
  std::vector<Segment> segments;

  int64_t Tiles() const {
    int64_t tiles = 0;
    for (const Segment& s : segments) tiles += s.Tiles();
    return tiles;
  }
  int64_t Cost() const {
    int64_t cost = 0;
    for (const Segment& s : segments) cost += s.Cost();
    return cost;
  }
};

// Requests in order, head blocks within, the row windows before the history.
std::vector<Job> ListJobs(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                          int64_t head_blocks) {
  const int64_t heads = shape.cache.heads / head_blocks;
  const int64_t token_bytes[2] = {2 * heads * (shape.cache.CodeBytes() + shape.cache.ScaleBytes()),
                                  4 * heads * shape.cache.dim};
  std::vector<Job> jobs;
  int64_t begin[2] = {0, 0};
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int64_t tokens[2] = {lengths[r].quantised, lengths[r].rows};
    for (const int64_t count : tokens) {
      if (count < 0 || count > std::numeric_limits<int32_t>::max()) {
        throw Error(ErrorCode::kUsage,
                    "request " + std::to_string(r) + " has " + std::to_string(count) + " tokens");
      }
    }
    for (int64_t block = 0; block < head_blocks; ++block) {
      Job job{static_cast<int32_t>(r), static_cast<int32_t>(block), {}};
      for (const Tier tier : {Tier::kRows, Tier::kQuantised}) {
        const auto which = static_cast<size_t>(tier);
        if (tokens[which] == 0) continue;
        const int64_t tile = TileTokens(shape, tier);
        job.segments.push_back(
            {begin[which], tokens[which], tile, tile * token_bytes[which], tier});
      }
      jobs.push_back(std::move(job));
    }
    begin[0] += tokens[0];
    begin[1] += tokens[1];
  }
  return jobs;
}

void AddPiece(DecodePlan& plan, const Job& job, const Segment& segment, int64_t first,
              int64_t tokens, bool grouped) {
  plan.pieces.push_back({segment.slot_begin + first, static_cast<int32_t>(tokens), job.request,
                         job.head_block, segment.tier, static_cast<int32_t>(plan.pieces.size()),
                         grouped ? 1 : 0});
}

// The one piece of a job without tokens: somebody has to write its result.
void AddNothing(DecodePlan& plan, const Job& job) {
  AddPiece(plan, job, {0, 0, 1, 0, Tier::kQuantised}, 0, 0, false);
}

// Deals the tiles of the jobs out, in order, so that block b ends where (b + 1) / blocks of the
// bytes are read; a tile goes where its middle falls.
class Dealer {
 public:
  Dealer(DecodePlan& plan, int64_t total_cost, int64_t blocks)
      : plan_(plan), total_(total_cost), blocks_(blocks) {}

  void Deal(const Job& job) {
    if (job.segments.empty()) {
      OpenUntil(BlockOf(cost_));
      AddNothing(plan_, job);
    }
    for (const Segment& segment : job.segments) Deal(job, segment);
  }
  void Close() { OpenUntil(blocks_); }

 private:
  void Deal(const Job& job, const Segment& segment) {
    const int64_t tiles = segment.Tiles();
    for (int64_t tile = 0; tile < tiles;) {
      const int64_t block = BlockOf(cost_ + segment.tile_cost / 2);
      OpenUntil(block);
      // Tiles whose middle lies before the block's end.
      const int64_t end_cost = (block + 1) * total_ / blocks_;
      int64_t count =
          (end_cost - cost_ - segment.tile_cost / 2 + segment.tile_cost - 1) / segment.tile_cost;
      count = std::clamp<int64_t>(count, 1, tiles - tile);
      count = std::min(count, std::max<int64_t>(1, kMaxPieceTokens / segment.tile_tokens));
      const int64_t first = tile * segment.tile_tokens;
      AddPiece(plan_, job, segment, first,
               std::min(count * segment.tile_tokens, segment.tokens - first), false);
      tile += count;
      cost_ += count * segment.tile_cost;
    }
  }
  int64_t BlockOf(int64_t cost) const {
    return std::min(blocks_ - 1, cost * blocks_ / std::max<int64_t>(total_, 1));
  }
  // Blocks up to `block` begin at the piece that comes next.
  void OpenUntil(int64_t block) {
    while (static_cast<int64_t>(plan_.block_begin.size()) <= block) {
      plan_.block_begin.push_back(static_cast<int32_t>(plan_.pieces.size()));
    }
  }

  DecodePlan& plan_;
  int64_t total_, blocks_;
  int64_t cost_ = 0;
};

// Whole clusters for every job with tokens, in proportion to its bytes; nothing where a job is too
// short for a cluster or there are too few of them.
std::optional<std::vector<int64_t>> ShareClusters(const std::vector<Job>& jobs, int64_t clusters) {
  std::vector<int64_t> shares(jobs.size(), 0);
  int64_t left = clusters;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].segments.empty()) continue;
    if (jobs[i].Tiles() < kClusterBlocks || left == 0) return std::nullopt;
    shares[i] = 1;
    --left;
  }
  if (left == clusters) return std::nullopt;  // no tokens at all
  for (; left > 0; --left) {
    size_t most = jobs.size();
    double worst = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (shares[i] == 0 || jobs[i].Tiles() < (shares[i] + 1) * kClusterBlocks) continue;
      const double load = static_cast<double>(jobs[i].Cost()) / static_cast<double>(shares[i]);
      if (load > worst) {
        worst = load;
        most = i;
      }
    }
    if (most == jobs.size()) break;
    ++shares[most];
  }
  return shares;
}

// Blocks of `blocks` for each segment of a job, so that the largest share is smallest.
std::vector<int64_t> ShareBlocks(const Job& job, int64_t blocks) {
  if (job.segments.size() == 1) return {blocks};
  const auto a = static_cast<double>(job.segments[0].Cost());
  const auto b = static_cast<double>(job.segments[1].Cost());
  const auto most = [&](int64_t first) {
    return std::max(a / static_cast<double>(first), b / static_cast<double>(blocks - first));
  };
  const auto exact = static_cast<int64_t>(static_cast<double>(blocks) * a / (a + b));
  const int64_t low = std::clamp<int64_t>(exact, 1, blocks - 1);
  const int64_t high = std::min(low + 1, blocks - 1);
  const int64_t first = most(high) < most(low) ? high : low;
  return {first, blocks - first};
}

// A plan of grouped pieces: one a block, eight consecutive blocks of one job a group. Sets `cost`
// to the most bytes of a block. Nothing where the jobs do not allow it.
std::optional<DecodePlan> PlanClusters(const std::vector<Job>& jobs, int64_t clusters,
                                       double& cost) {
  const auto shares = ShareClusters(jobs, clusters);
  if (!shares) return std::nullopt;
  DecodePlan plan;
  plan.clusters = true;
  cost = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    if (job.segments.empty()) AddNothing(plan, job);
    if ((*shares)[i] == 0) continue;
    const std::vector<int64_t> counts = ShareBlocks(job, (*shares)[i] * kClusterBlocks);
    for (size_t s = 0; s < counts.size(); ++s) {
      const Segment& segment = job.segments[s];
      const int64_t pages = (segment.tokens + kSlotsPerPage - 1) / kSlotsPerPage;
      if (pages < counts[s]) return std::nullopt;
      for (int64_t b = 0; b < counts[s]; ++b) {
        const int64_t first = b * pages / counts[s] * kSlotsPerPage;
        const int64_t end =
            std::min((b + 1) * pages / counts[s] * kSlotsPerPage, segment.tokens);
        if (end - first > kMaxPieceTokens) return std::nullopt;
        plan.block_begin.push_back(
            plan.block_begin.empty() ? 0 : static_cast<int32_t>(plan.pieces.size()));
        AddPiece(plan, job, segment, first, end - first, true);
        cost = std::max(cost, static_cast<double>(end - first) *
                                  static_cast<double>(segment.tile_cost) /
                                  static_cast<double>(segment.tile_tokens));
      }
    }
  }
  return plan;
}

// Microseconds of a plan beyond what all plans share, by measurements on an H200: a multiprocessor
// reads so many bytes a microsecond, and a warp adds up to eight partial results of a row at a time.
constexpr double kBytesPerMicrosecond = 28000;
constexpr double kMicrosecondsPerSum = 0.4, kMicrosecondsPerMeeting = 0.8;

double SumTime(int64_t rows_per_warp, int64_t partials) {
  return kMicrosecondsPerMeeting +
         kMicrosecondsPerSum * static_cast<double>(rows_per_warp * ((partials + 7) / 8));
}

DecodePlan PlanBlocksOnly(const std::vector<Job>& jobs, int64_t blocks, double& cost) {
  int64_t total = 0;
  int64_t tiles = 0;
  for (const Job& job : jobs) {
    total += job.Cost();
    tiles += job.Tiles();
  }
  const int64_t used = std::clamp<int64_t>(tiles, 1, blocks);
  DecodePlan plan;
  Dealer dealer(plan, total, used);
  for (const Job& job : jobs) dealer.Deal(job);
  dealer.Close();
  cost = static_cast<double>(total) / static_cast<double>(used);
  return plan;
}

// Pieces are ordered by request, head block and token: counts them.
void CountPartials(DecodePlan& plan) {
  plan.partial_begin.assign(static_cast<size_t>(plan.requests * plan.head_blocks + 1), 0);
  for (const PlanPiece& piece : plan.pieces) {
    ++plan.partial_begin[static_cast<size_t>(piece.request * plan.head_blocks + piece.head_block +
                                             1)];
  }
  for (size_t i = 1; i < plan.partial_begin.size(); ++i) {
    plan.partial_begin[i] += plan.partial_begin[i - 1];
  }
}

int64_t MostPartials(const DecodePlan& plan) {
  int32_t most = 0;
  for (size_t i = 1; i < plan.partial_begin.size(); ++i) {
    most = std::max(most, plan.partial_begin[i] - plan.partial_begin[i - 1]);
  }
  return most;
}

}  // namespace

int64_t HeadsPerBlock(const DecodeShape& shape) {
  int64_t heads = int64_t{1} << MaxHeadsLog2(shape.cache.dim, shape.cache.groups, shape.GroupSize());
  while (shape.cache.heads % heads != 0) heads /= 2;
  return heads;
}

int64_t TileTokens(const DecodeShape& shape, Tier tier) {
  const int64_t warps = DecodeWarps(shape.cache.dim, shape.cache.groups);
  return (tier == Tier::kQuantised ? kQuantisedWarpTokens : kRowWarpTokens) * warps /
         (HeadsPerBlock(shape) * ColumnHalves(shape.GroupSize()));
}

int64_t MaxPieces(int64_t requests, int64_t head_blocks, int64_t blocks) {
  // Every segment and every border between blocks opens at most one piece; shares above
  // kMaxPieceTokens are cut, for which there is room up to four pieces a block.
  return 2 * requests * head_blocks + 4 * blocks;
}

int64_t PlanBlocks(const DecodeShape& /*shape*/, int multiprocessors) { return multiprocessors; }

DecodePlan PlanDecode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                      int64_t blocks, int64_t clusters) {
  CheckDecodeShape(shape);
  OSCAR_CHECK(blocks > 0);
  const int64_t head_blocks = shape.cache.heads / HeadsPerBlock(shape);
  const std::vector<Job> jobs = ListJobs(shape, lengths, head_blocks);
  double cost = 0, cluster_cost = 0;
  DecodePlan plan = PlanBlocksOnly(jobs, blocks, cost);
  plan.requests = static_cast<int64_t>(lengths.size());
  plan.head_blocks = head_blocks;
  CountPartials(plan);
  std::optional<DecodePlan> grouped =
      PlanClusters(jobs, std::min(clusters, blocks / kClusterBlocks), cluster_cost);
  if (grouped) {
    grouped->requests = plan.requests;
    grouped->head_blocks = head_blocks;
    CountPartials(*grouped);
    const int64_t rows = HeadsPerBlock(shape) * shape.GroupSize();
    const int64_t warps = DecodeWarps(shape.cache.dim, shape.cache.groups);
    const int64_t groups = MostPartials(*grouped) / kClusterBlocks;
    const double time = cluster_cost / kBytesPerMicrosecond + SumTime(1, kClusterBlocks) +
                        (groups > 1 ? SumTime(1, groups) : 0);
    const double time_alone = cost / kBytesPerMicrosecond +
                              SumTime((rows + warps - 1) / warps, MostPartials(plan));
    if (time < time_alone) plan = std::move(*grouped);
  }
  plan.blocks = blocks;
  while (static_cast<int64_t>(plan.block_begin.size()) < blocks + 1) {
    plan.block_begin.push_back(static_cast<int32_t>(plan.pieces.size()));
  }
  return plan;
}

}  // namespace oscar
