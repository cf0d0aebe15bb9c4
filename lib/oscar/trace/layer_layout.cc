#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "oscar/core/error.h"
#include "oscar/trace/layout.h"

namespace oscar {
namespace {

// Tokens of one chunk of a rows dataset, and of one piece while copying.
constexpr int64_t kChunkTokens = 256;
constexpr int64_t kCopyTokens = 16 * kChunkTokens;

// Far beyond any model, small enough that products of a few of them stay in 63 bits.
constexpr int64_t kLargestHeads = 1 << 14;
constexpr int64_t kLargestDim = 1 << 16;
constexpr int64_t kLargestTokens = int64_t{1} << 40;

struct RowsInfo {
  const char* name;
  int64_t heads, dim;
  const std::vector<BFloat16>* data;
};

std::vector<RowsInfo> RowsOf(const LayerShape& shape, const LayerCapture* capture) {
  return {{"q", shape.q_heads, shape.k_dim, capture == nullptr ? nullptr : &capture->q},
          {"k", shape.kv_heads, shape.k_dim, capture == nullptr ? nullptr : &capture->k},
          {"v", shape.kv_heads, shape.v_dim, capture == nullptr ? nullptr : &capture->v}};
}

void WriteShape(H5Group& group, const LayerInfo& info) {
  group.SetAttribute("q_heads", info.shape.q_heads);
  group.SetAttribute("kv_heads", info.shape.kv_heads);
  group.SetAttribute("k_dim", info.shape.k_dim);
  group.SetAttribute("v_dim", info.shape.v_dim);
  group.SetAttribute("hidden", info.shape.hidden);
  group.SetAttribute("softmax_scale", info.shape.softmax_scale);
  group.SetAttribute("window", info.shape.window);
  group.SetAttribute("rope", info.shape.rope);
  group.SetAttribute("count", static_cast<int64_t>(info.count));
  group.SetAttribute("sst_qq_hash", info.sst_qq_hash);
}

LayerShape ReadShape(const H5Group& group) {
  const auto integer = [&](const char* name, int64_t low, int64_t high) {
    const int64_t value = group.IntAttribute(name);
    if (value < low || value > high) {
      throw Error(ErrorCode::kFormat, fmt::format("{}: attribute {} is {}, expected {} to {}",
                                                  group.where(), name, value, low, high));
    }
    return value;
  };
  LayerShape shape;
  shape.q_heads = integer("q_heads", 1, kLargestHeads);
  shape.kv_heads = integer("kv_heads", 1, kLargestHeads);
  shape.k_dim = integer("k_dim", 1, kLargestDim);
  shape.v_dim = integer("v_dim", 1, kLargestDim);
  shape.hidden = integer("hidden", 0, kLargestTokens);
  shape.softmax_scale = group.RealAttribute("softmax_scale");
  shape.window = integer("window", 0, kLargestTokens);
  shape.rope = group.TextAttribute("rope");
  if (shape.q_heads % shape.kv_heads != 0) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{}: {} query heads do not divide among {} KV heads", group.where(),
                            shape.q_heads, shape.kv_heads));
  }
  if (!(shape.softmax_scale > 0 && shape.softmax_scale <= 1e6)) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: softmax scale {} is not a positive number",
                                                group.where(), shape.softmax_scale));
  }
  return shape;
}

void RequireShape(const H5Group& group, const std::string& path,
                  const std::vector<int64_t>& expected, H5Type type) {
  const H5Dataset dataset = group.Dataset(path);
  if (dataset.shape() != expected || dataset.type() != type) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{}: expected {} {}, found {} {}", dataset.where(), H5TypeName(type),
                            expected, H5TypeName(dataset.type()), dataset.shape()));
  }
}

void RequireFinite(const MomentTensor& tensor, std::string_view name, const std::string& where) {
  const auto bad = std::find_if(tensor.data.begin(), tensor.data.end(),
                                [](double x) { return !std::isfinite(x); });
  if (bad == tensor.data.end()) return;
  throw Error(ErrorCode::kNumeric, fmt::format("{}: moment {} holds {} at element {}", where, name,
                                               *bad, bad - tensor.data.begin()));
}

}  // namespace

void WriteLayerGroup(H5Group& group, const LayerCapture& capture, int64_t row_tokens) {
  const LayerMoments& m = capture.moments;
  WriteShape(group, {m.shape, m.count, {}, m.sst_qq_hash, false});
  H5Group moments = group.CreateGroup("moments");
  for (const auto& [id, tensor] : m.sums) {
    moments.Write<double>(std::string(InfoOf(id).name), tensor.data, tensor.shape);
  }
  if (row_tokens > 0) {
    H5Group rows = group.CreateGroup("rows");
    for (const RowsInfo& r : RowsOf(m.shape, &capture)) {
      rows.Write<BFloat16>(r.name, *r.data, {row_tokens, r.heads, r.dim}, kChunkTokens);
    }
  }
  if (!capture.o_proj.empty()) {
    group.Write<BFloat16>("o_proj", capture.o_proj,
                          {m.shape.hidden, m.shape.q_heads * m.shape.v_dim});
  }
}

LayerInfo ReadLayerInfo(const H5Group& group, const TraceHeader& header) {
  LayerInfo info;
  info.shape = ReadShape(group);
  info.count = static_cast<uint64_t>(group.IntAttribute("count"));
  if (info.count != static_cast<uint64_t>(TotalTokens(header))) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: {} tokens observed, the sequences have {}",
                                                group.where(), info.count, TotalTokens(header)));
  }
  info.sst_qq_hash = group.TextAttribute("sst_qq_hash");
  const H5Group moments = group.Group("moments");
  for (const MomentInfo& row : MomentTable()) {
    const std::string name(row.name);
    if (!moments.Has(name)) continue;
    RequireShape(moments, name, MomentShape(row.id, info.shape), H5Type::kF64);
    info.moments.push_back(row.id);
  }
  const int64_t row_tokens = RowTokens(header);
  for (const RowsInfo& r : RowsOf(info.shape, nullptr)) {
    if (row_tokens == 0) break;
    RequireShape(group, fmt::format("rows/{}", r.name), {row_tokens, r.heads, r.dim},
                 H5Type::kBF16);
  }
  info.has_o_proj = group.Has("o_proj");
  if (info.has_o_proj) {
    RequireShape(group, "o_proj", {info.shape.hidden, info.shape.q_heads * info.shape.v_dim},
                 H5Type::kBF16);
  }
  return info;
}

LayerMoments ReadLayerMoments(const H5Group& group, const LayerInfo& info) {
  LayerMoments moments;
  moments.shape = info.shape;
  moments.count = info.count;
  moments.sst_qq_hash = info.sst_qq_hash;
  const H5Group stored = group.Group("moments");
  for (const Moment id : info.moments) {
    const std::string name(InfoOf(id).name);
    const std::vector<int64_t> shape = MomentShape(id, info.shape);
    MomentTensor tensor{shape, stored.Read<double>(name, shape)};
    RequireFinite(tensor, name, group.where());
    moments.sums.emplace(id, std::move(tensor));
  }
  return moments;
}

void CopyLayerGroup(const H5Group& from, const LayerInfo& info, H5Group& to) {
  WriteShape(to, info);
  {
    H5Group moments = to.CreateGroup("moments");
    for (const auto& [id, tensor] : ReadLayerMoments(from, info).sums) {
      moments.Write<double>(std::string(InfoOf(id).name), tensor.data, tensor.shape);
    }
  }
  if (from.Has("rows")) {
    H5Group rows = to.CreateGroup("rows");
    for (const RowsInfo& r : RowsOf(info.shape, nullptr)) {
      const H5Dataset source = from.Dataset(fmt::format("rows/{}", r.name));
      H5Dataset target = rows.CreateDataset<BFloat16>(r.name, source.shape(), kChunkTokens);
      const int64_t tokens = source.shape()[0];
      for (int64_t t = 0; t < tokens; t += kCopyTokens) {
        target.WriteRows<BFloat16>(t,
                                   source.ReadRows<BFloat16>(t, std::min(kCopyTokens, tokens - t)));
      }
    }
  }
  if (info.has_o_proj) {
    const H5Dataset source = from.Dataset("o_proj");
    to.Write<BFloat16>("o_proj", source.Read<BFloat16>(), source.shape());
  }
}

void ValidateCapture(const LayerCapture& capture, const TraceHeader& header) {
  const LayerMoments& m = capture.moments;
  const std::string where = fmt::format("layer {}", capture.layer);
  const int64_t tokens = TotalTokens(header);
  if (m.count != static_cast<uint64_t>(tokens)) {
    throw Error(ErrorCode::kData,
                fmt::format("{}: {} of {} tokens were observed", where, m.count, tokens));
  }
  for (const auto& [id, tensor] : m.sums) {
    OSCAR_CHECK(tensor.shape == MomentShape(id, m.shape));
    RequireFinite(tensor, InfoOf(id).name, where);
    const bool second_moment_of_rows = id == Moment::kQq || id == Moment::kKk || id == Moment::kVv;
    const auto is_zero = [](double x) { return x == 0; };
    if (second_moment_of_rows && std::all_of(tensor.data.begin(), tensor.data.end(), is_zero)) {
      throw Error(ErrorCode::kData,
                  fmt::format("{}: every entry of moment {} is zero", where, InfoOf(id).name),
                  "the observed rows are all zero: nothing can be calibrated from them");
    }
  }
  for (const RowsInfo& r : RowsOf(m.shape, &capture)) {
    OSCAR_CHECK(static_cast<int64_t>(r.data->size()) == RowTokens(header) * r.heads * r.dim);
  }
  OSCAR_CHECK(capture.o_proj.empty() || static_cast<int64_t>(capture.o_proj.size()) ==
                                            m.shape.hidden * m.shape.q_heads * m.shape.v_dim);
}

}  // namespace oscar
