#include "oscar/stats/moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"

namespace oscar {
namespace {

constexpr std::array<MomentInfo, 9> kTable = {{
    {Moment::kQq, "qq", true, false, 2, "sum over tokens of q^T q"},
    {Moment::kKk, "kk", false, false, 2, "sum over tokens of k^T k"},
    {Moment::kVv, "vv", false, true, 2, "sum over tokens of v^T v"},
    {Moment::kOo, "oo", true, true, 2,
     "sum over tokens of o^T o, o = causal softmax(q k^T scale) v"},
    {Moment::kSst, "sst", false, true, 2,
     "sum over tokens of w v^T v, w = k A k^T, A = sum of qq over the group / (tokens group)"},
    {Moment::kSstWeight, "sst_weight", false, true, 0, "sum over tokens of w"},
    {Moment::kQSum, "q_sum", true, false, 1, "sum over tokens of q"},
    {Moment::kKSum, "k_sum", false, false, 1, "sum over tokens of k"},
    {Moment::kVSum, "v_sum", false, true, 1, "sum over tokens of v"},
}};

std::string KnownNames() {
  std::string names;
  for (const MomentInfo& info : kTable) {
    if (!names.empty()) names += ", ";
    names += info.name;
  }
  return names;
}

// Names the first field in which two shapes differ.
std::string ShapeDifference(const LayerShape& a, const LayerShape& b) {
  const auto field = [](std::string_view name, const auto& x, const auto& y) {
    return fmt::format("{} {} and {}", name, x, y);
  };
  if (a.q_heads != b.q_heads) return field("query heads", a.q_heads, b.q_heads);
  if (a.kv_heads != b.kv_heads) return field("KV heads", a.kv_heads, b.kv_heads);
  if (a.k_dim != b.k_dim) return field("key head dim", a.k_dim, b.k_dim);
  if (a.v_dim != b.v_dim) return field("value head dim", a.v_dim, b.v_dim);
  if (a.hidden != b.hidden) return field("hidden size", a.hidden, b.hidden);
  if (a.softmax_scale != b.softmax_scale) {
    return field("softmax scale", a.softmax_scale, b.softmax_scale);
  }
  if (a.window != b.window) return field("sliding window", a.window, b.window);
  return field("rope", a.rope, b.rope);
}

}  // namespace

std::span<const MomentInfo> MomentTable() { return kTable; }

const MomentInfo& InfoOf(Moment id) {
  const auto row = std::find_if(kTable.begin(), kTable.end(),
                                [&](const MomentInfo& info) { return info.id == id; });
  OSCAR_CHECK(row != kTable.end());
  return *row;
}

Moment MomentFromName(std::string_view name) {
  for (const MomentInfo& info : kTable) {
    if (info.name == name) return info.id;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("unknown moment '{}'; known: all, {}", name, KnownNames()));
}

std::vector<Moment> ParseMomentList(std::string_view list) {
  std::array<bool, kTable.size()> wanted{};
  const auto want = [&](Moment id) {
    wanted[static_cast<size_t>(&InfoOf(id) - kTable.data())] = true;
  };
  if (list == "all") {
    wanted.fill(true);
  } else {
    size_t begin = 0;
    while (begin <= list.size()) {
      const size_t end = std::min(list.find(',', begin), list.size());
      const Moment id = MomentFromName(list.substr(begin, end - begin));
      want(id);
      if (id == Moment::kSst || id == Moment::kSstWeight) {
        // The score weights come from the finished qq; the target divides by the summed weights.
        want(Moment::kQq);
        want(Moment::kSst);
        want(Moment::kSstWeight);
      }
      begin = end + 1;
    }
  }
  std::vector<Moment> moments;
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (wanted[i]) moments.push_back(kTable[i].id);
  }
  return moments;
}

std::vector<int64_t> MomentShape(Moment id, const LayerShape& shape) {
  const MomentInfo& info = InfoOf(id);
  std::vector<int64_t> dims = {info.per_query_head ? shape.q_heads : shape.kv_heads};
  for (int axis = 0; axis < info.rank; ++axis) {
    dims.push_back(info.value_dim ? shape.v_dim : shape.k_dim);
  }
  return dims;
}

const MomentTensor& LayerMoments::At(Moment id) const {
  const auto found = sums.find(id);
  if (found == sums.end()) {
    throw Error(ErrorCode::kData, fmt::format("the moment '{}' is missing", InfoOf(id).name),
                fmt::format("dump with --moments all, or with {} in the list", InfoOf(id).name));
  }
  return found->second;
}

std::string HashOf(const MomentTensor& tensor) {
  return Sha256Hex(tensor.data.data(), tensor.data.size() * sizeof(double));
}

void Merge(LayerMoments& into, const LayerMoments& other) {
  if (into.shape != other.shape) {
    throw Error(ErrorCode::kMismatch, fmt::format("layers of different shape cannot be merged: {}",
                                                  ShapeDifference(into.shape, other.shape)));
  }
  // Score weights from different qq are weights on different scales: their sum means nothing.
  const bool same_weights = into.sst_qq_hash == other.sst_qq_hash;
  std::erase_if(into.sums, [&](const auto& entry) {
    const bool weighted = entry.first == Moment::kSst || entry.first == Moment::kSstWeight;
    return !other.Has(entry.first) || (weighted && !same_weights);
  });
  if (!into.Has(Moment::kSst)) into.sst_qq_hash.clear();
  for (auto& [id, tensor] : into.sums) {
    const MomentTensor& addend = other.At(id);
    OSCAR_CHECK(tensor.shape == addend.shape && tensor.data.size() == addend.data.size());
    for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] += addend.data[i];
  }
  into.count += other.count;
}

}  // namespace oscar
