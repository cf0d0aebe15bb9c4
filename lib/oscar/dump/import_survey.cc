#include "oscar/dump/import_survey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/dump/layer_list.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParts[] = {"q", "k", "v", "seq_lens"};

// A plain decimal number without sign and leading zeros.
std::optional<int64_t> NumberOf(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain = !text.empty() && text.front() != '-' && (text.size() == 1 || text[0] != '0');
  if (!plain || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Entries of a folder by name, so that what is reported does not depend on the file system's order.
std::vector<fs::directory_entry> EntriesOf(const fs::path& folder) {
  std::vector<fs::directory_entry> entries(fs::directory_iterator(folder), {});
  std::sort(entries.begin(), entries.end());
  return entries;
}

// A folder that starts like a layer's was meant as one: to pass over it would lose a layer.
bool LooksLikeLayer(const fs::directory_entry& entry) {
  std::string start = entry.path().filename().string().substr(0, 5);
  std::ranges::transform(start, start.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return entry.is_directory() && start == "layer";
}

// The number of a layer's folder. Throws Error(kFormat) for a name that is not layer_<number>.
int LayerOf(const fs::path& folder) {
  constexpr std::string_view kPrefix = "layer_";
  const std::string name = folder.filename().string();
  std::string_view rest = name;
  if (rest.starts_with(kPrefix)) {
    rest.remove_prefix(kPrefix.size());
    const auto number = NumberOf(rest);
    if (number && *number < (1 << 20)) return static_cast<int>(*number);
    while (rest.size() > 1 && rest.front() == '0') rest.remove_prefix(1);
    const fs::path plain = folder.parent_path() / fmt::format("{}{}", kPrefix, rest);
    if (NumberOf(rest) && fs::exists(plain)) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{} and {} are the same layer", folder.string(), plain.string()),
                  "keep the folder that belongs to this dump");
    }
  }
  throw Error(ErrorCode::kFormat,
              fmt::format("{}: expected the name layer_<number>, the number without leading zeros",
                          folder.string()),
              "rename the folder, or move it elsewhere");
}

std::vector<int> FindLayers(const fs::path& folder, std::vector<fs::path>& ignored) {
  std::set<int> layers;
  for (const fs::directory_entry& entry : EntriesOf(folder)) {
    if (LooksLikeLayer(entry)) {
      layers.insert(LayerOf(entry.path()));
    } else {
      ignored.push_back(entry.path());
    }
  }
  if (layers.empty()) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{} holds no folder layer_<number>", folder.string()),
                "name the folder that holds layer_0, layer_1, ...");
  }
  return {layers.begin(), layers.end()};
}

// Chunk numbers of one part of a layer, ascending.
std::vector<int64_t> FindChunks(const fs::path& folder, std::vector<fs::path>& ignored) {
  if (!fs::is_directory(folder)) {
    throw Error(ErrorCode::kIo, fmt::format("{}: no such folder", folder.string()),
                "a layer of a dump has the folders q, k, v and seq_lens");
  }
  std::vector<int64_t> chunks;
  for (const fs::directory_entry& entry : EntriesOf(folder)) {
    if (entry.path().extension() != ".pt") {
      ignored.push_back(entry.path());
      continue;
    }
    const auto number = NumberOf(entry.path().stem().string());
    if (!number) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: the name of a chunk is <number>.pt", entry.path().string()));
    }
    chunks.push_back(*number);
  }
  std::sort(chunks.begin(), chunks.end());
  if (chunks.empty()) {
    throw Error(ErrorCode::kFormat, fmt::format("{} holds no chunk", folder.string()));
  }
  // Counting starts at 0, or at 1 where the warm-up was not written.
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t expected = std::min<int64_t>(chunks.front(), 1) + static_cast<int64_t>(i);
    if (chunks[i] == expected) continue;
    throw Error(
        ErrorCode::kFormat,
        fmt::format("{}: chunk {} is missing ({} follows)", folder.string(), expected, chunks[i]),
        "copy the whole dump; a dump with holes cannot be imported");
  }
  return chunks;
}

std::vector<int64_t> ReadSeqLens(const fs::path& file) {
  const TorchTensor tensor = ReadDumpTensor(file);
  if (tensor.shape.size() != 1) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: expected a list of lengths, found shape {}",
                                                file.string(), tensor.shape));
  }
  std::vector<int64_t> lengths;
  try {
    lengths = tensor.ToInts();
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: {}", file.string(), e.what()), e.hint());
  }
  for (const int64_t length : lengths) {
    if (length < 0 || length > (int64_t{1} << 40)) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: {} is no sequence length", file.string(), length));
    }
  }
  return lengths;
}

// The beginning and the end of a zip hold its members' names, sizes and CRC-32s: content changes
// there when any tensor byte changes, and reading them costs nothing.
void HashEnds(const fs::path& file, Sha256& hash) {
  constexpr size_t kEnd = 4096;
  const MappedFile map(file);
  const auto bytes = map.bytes();
  const std::string head = fmt::format("{}/{} {}\n", file.parent_path().filename().string(),
                                       file.filename().string(), bytes.size());
  hash.Update(head.data(), head.size());
  const size_t size = std::min(kEnd, bytes.size());
  hash.Update(bytes.data(), size);
  hash.Update(bytes.data() + bytes.size() - size, size);
}

struct Survey {
  ImportSurvey& out;
  int64_t q_heads, kv_heads;
  double softmax_scale;

  void Layer(int layer);
  void Chunk(int layer, const ImportChunk& chunk, LayerShape& shape, bool first_chunk);
};

void Survey::Chunk(int layer, const ImportChunk& chunk, LayerShape& shape, bool first_chunk) {
  const int64_t tokens = std::accumulate(chunk.seq_lens.begin(), chunk.seq_lens.end(), int64_t{0});
  int64_t dims[3] = {};
  for (size_t p = 0; p < 3; ++p) {
    const fs::path file = out.File(layer, kParts[p], chunk.id);
    const TorchTensor tensor = ReadDumpTensor(file);
    const RowsLayout layout = LayoutOf(tensor, p == 0 ? q_heads : kv_heads, file);
    if (layout.tokens < tokens) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: {} rows, but seq_lens adds up to {}", file.string(),
                              layout.tokens, tokens),
                  "the file is truncated, or seq_lens belongs to another dump");
    }
    const bool is_float =
        tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
    if (!is_float) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: rows of type {}, expected bf16, f16 or f32", file.string(),
                              DTypeName(tensor.dtype)));
    }
    if (out.shapes.empty() && first_chunk && p == 0) out.dtype = tensor.dtype;
    if (tensor.dtype != out.dtype) {
      throw Error(ErrorCode::kMismatch,
                  fmt::format("{}: rows of type {}, elsewhere {}", file.string(),
                              DTypeName(tensor.dtype), DTypeName(out.dtype)));
    }
    dims[p] = layout.dim;
  }
  if (first_chunk) {
    shape = {.q_heads = q_heads,
             .kv_heads = kv_heads,
             .k_dim = dims[1],
             .v_dim = dims[2],
             .softmax_scale = softmax_scale,
             .rope = "unknown"};
    if (softmax_scale == 0) shape.softmax_scale = 1 / std::sqrt(static_cast<double>(dims[1]));
  }
  if (dims[0] != shape.k_dim || dims[1] != shape.k_dim || dims[2] != shape.v_dim) {
    throw Error(
        ErrorCode::kMismatch,
        fmt::format("{}: layer {}, chunk {}: head dims q {}, k {}, v {}; expected {}, {}, {}",
                    out.folder.string(), layer, chunk.id, dims[0], dims[1], dims[2], shape.k_dim,
                    shape.k_dim, shape.v_dim),
        "check --q-heads and --kv-heads");
  }
}

void Survey::Layer(int layer) {
  const fs::path base = out.folder / fmt::format("layer_{}", layer);
  for (const fs::directory_entry& entry : EntriesOf(base)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(kParts, name) == std::end(kParts)) out.ignored.push_back(entry.path());
  }
  const std::vector<int64_t> ids = FindChunks(base / "q", out.ignored);
  for (const char* part : {"k", "v", "seq_lens"}) {
    const std::vector<int64_t> other = FindChunks(base / part, out.ignored);
    if (other == ids) continue;
    throw Error(ErrorCode::kMismatch,
                fmt::format("{}: {} has the chunks {}, q has {}", base.string(), part, other, ids),
                "copy the whole dump; a dump with holes cannot be imported");
  }
  std::vector<ImportChunk> chunks;
  for (const int64_t id : ids) {
    chunks.push_back({id, ReadSeqLens(out.File(layer, "seq_lens", id))});
  }
  if (out.chunks.empty()) out.chunks = chunks;
  for (size_t i = 0; i < std::max(chunks.size(), out.chunks.size()); ++i) {
    const bool both = i < chunks.size() && i < out.chunks.size();
    if (both && chunks[i].id == out.chunks[i].id && chunks[i].seq_lens == out.chunks[i].seq_lens) {
      continue;
    }
    throw Error(
        ErrorCode::kMismatch,
        fmt::format("{}: layer {} and layer {} hold different tokens in their chunk number {}",
                    out.folder.string(), layer, out.layers.front(), i),
        "all layers of a dump must come from the same run");
  }
  LayerShape shape;
  for (size_t i = 0; i < chunks.size(); ++i) Chunk(layer, chunks[i], shape, i == 0);
  Sha256 hash;
  for (const char* part : kParts) {
    for (const int64_t id : ids) {
      const fs::path file = out.File(layer, part, id);
      HashEnds(file, hash);
      out.bytes += static_cast<int64_t>(fs::file_size(file));
    }
  }
  out.fingerprints[layer] = hash.Hex();
  out.shapes[layer] = shape;
}

}  // namespace

fs::path ImportSurvey::File(int layer, const char* part, int64_t chunk) const {
  return folder / fmt::format("layer_{}", layer) / part / fmt::format("{}.pt", chunk);
}

TorchTensor ReadDumpTensor(const fs::path& file) {
  const TorchValue value = ReadTorchFile(file, {.check_storage_crc = false});
  if (!value.is_tensor()) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: expected a tensor", file.string()));
  }
  return std::get<TorchTensor>(value.data);
}

RowsLayout LayoutOf(const TorchTensor& tensor, int64_t heads, const fs::path& file) {
  const std::vector<int64_t>& s = tensor.shape;
  const std::vector<int64_t>& st = tensor.strides;
  RowsLayout r;
  r.heads = heads;
  r.offset = tensor.storage_offset;
  if (s.size() == 3 && s[1] == heads) {
    r.tokens = s[0], r.dim = s[2];
    r.token = st[0], r.head = st[1], r.dim_stride = st[2];
  } else if (s.size() == 2 && s[1] % heads == 0) {
    r.tokens = s[0], r.dim = s[1] / heads;
    r.token = st[0], r.head = r.dim * st[1], r.dim_stride = st[1];
  } else if (s.size() == 4 && s[0] == 1 && s[1] == heads) {
    r.tokens = s[2], r.dim = s[3];
    r.token = st[2], r.head = st[1], r.dim_stride = st[3];
  } else {
    throw Error(
        ErrorCode::kFormat,
        fmt::format("{}: shape {} does not fit {} heads: expected [T, {}, D], [T, {} * D] or "
                    "[1, {}, T, D]",
                    file.string(), s, heads, heads, heads, heads),
        "check --q-heads and --kv-heads; a dump of one tensor-parallel rank holds only a part "
        "of the heads and cannot be used");
  }
  if (r.dim == 0) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: shape {} has no head dim", file.string(), s));
  }
  return r;
}

ImportSurvey SurveyDump(const fs::path& folder, const std::string& layer_list, int64_t q_heads,
                        int64_t kv_heads, double softmax_scale) {
  if (!fs::is_directory(folder)) {
    throw Error(ErrorCode::kIo, fmt::format("cannot import {}: no such folder", folder.string()));
  }
  ImportSurvey survey;
  survey.folder = folder;
  const std::vector<int> found = FindLayers(folder, survey.ignored);
  survey.layers_found = static_cast<int64_t>(found.size());
  survey.layers = SelectLayers(layer_list, found);
  Survey work{survey, q_heads, kv_heads, softmax_scale};
  for (const int layer : survey.layers) work.Layer(layer);
  return survey;
}

}  // namespace oscar
