#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/trace/layout.h"

namespace oscar {

struct TraceReader::Impl {
  explicit Impl(const std::filesystem::path& p) : path(p), file(H5File::Open(p)) {
    header = ReadHeader(file);
    const H5Group layers = file.Group("layers");
    std::vector<std::string> expected;
    for (const int layer : header.layers) expected.push_back(std::to_string(layer));
    std::sort(expected.begin(), expected.end());
    if (layers.GroupNames() != expected) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: layer_ids lists [{}], found [{}]", layers.where(),
                              fmt::join(expected, ", "), fmt::join(layers.GroupNames(), ", ")));
    }
    for (const int layer : header.layers) {
      infos.emplace(layer, ReadLayerInfo(layers.Group(std::to_string(layer)), header));
    }
    for (const TraceSequence& s : header.sequences) {
      row_start.push_back(row_tokens);
      row_tokens += s.has_rows ? s.length : 0;
    }
  }

  const LayerInfo& Info(int layer) const {
    const auto found = infos.find(layer);
    if (found == infos.end()) {
      throw Error(ErrorCode::kData, fmt::format("{} has no layer {}; it has {}", path.string(),
                                                layer, header.layers));
    }
    return found->second;
  }

  H5Group Layer(int layer) const {
    Info(layer);
    return file.Group(fmt::format("layers/{}", layer));
  }

  std::filesystem::path path;
  H5File file;
  TraceHeader header;
  std::map<int, LayerInfo> infos;
  std::vector<int64_t> row_start;  // first row of each sequence in the rows datasets
  int64_t row_tokens = 0;
};

TraceReader::TraceReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;

const std::filesystem::path& TraceReader::path() const { return impl_->path; }
const TraceHeader& TraceReader::header() const { return impl_->header; }
const LayerShape& TraceReader::shape(int layer) const { return impl_->Info(layer).shape; }
int64_t TraceReader::row_tokens() const { return impl_->row_tokens; }

LayerMoments TraceReader::ReadMoments(int layer) const {
  return ReadLayerMoments(impl_->Layer(layer), impl_->Info(layer));
}

std::vector<float> TraceReader::ReadRows(int layer, Rows which, size_t index) const {
  OSCAR_CHECK(index < impl_->header.sequences.size());
  const TraceSequence& sequence = impl_->header.sequences[index];
  if (!sequence.has_rows) {
    throw Error(ErrorCode::kData,
                fmt::format("{}: sequence {} has no rows", impl_->path.string(), index),
                "dump with a larger --rows-tokens");
  }
  const char* name = which == Rows::kQ ? "q" : which == Rows::kK ? "k" : "v";
  const H5Dataset dataset = impl_->Layer(layer).Dataset(fmt::format("rows/{}", name));
  const std::vector<BFloat16> bits =
      dataset.ReadRows<BFloat16>(impl_->row_start[index], sequence.length);
  const size_t per_token = bits.size() / static_cast<size_t>(sequence.length);
  std::vector<float> rows(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    rows[i] = ToFloat(bits[i]);
    if (!std::isfinite(rows[i])) {
      throw Error(ErrorCode::kNumeric, fmt::format("{}: {} at token {} of sequence {}",
                                                   dataset.where(), rows[i], i / per_token, index));
    }
  }
  return rows;
}

std::optional<std::vector<float>> TraceReader::ReadOProj(int layer) const {
  if (!impl_->Info(layer).has_o_proj) return std::nullopt;
  const auto bits = impl_->Layer(layer).Read<BFloat16>("o_proj");
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), [](BFloat16 x) { return ToFloat(x); });
  return values;
}

}  // namespace oscar
