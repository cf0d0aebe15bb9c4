#include <fmt/format.h>

#include <string_view>

#include "oscar/core/error.h"
#include "oscar/trace/layout.h"

namespace oscar {
namespace {

constexpr std::string_view kSchema = "oscar.trace/1";
constexpr std::string_view kSchemaPrefix = "oscar.trace/";

constexpr int64_t kLargestTokens = int64_t{1} << 40;

std::vector<int64_t> Shape1(size_t n) { return {static_cast<int64_t>(n)}; }

bool IsHash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<TraceSequence> ReadSequences(const H5Group& root) {
  const H5Group group = root.Group("sequences");
  const std::vector<std::string> hashes = group.Dataset("sha256").ReadStrings();
  const std::vector<int64_t> shape = Shape1(hashes.size());
  const auto start = group.Read<int64_t>("start", shape);
  const auto length = group.Read<int64_t>("length", shape);
  const auto complete = group.Read<uint8_t>("complete", shape);
  const auto has_rows = group.Read<uint8_t>("has_rows", shape);
  std::vector<TraceSequence> sequences;
  for (size_t i = 0; i < hashes.size(); ++i) {
    sequences.push_back({start[i], length[i], complete[i] != 0, has_rows[i] != 0, hashes[i]});
  }
  return sequences;
}

void WriteSequences(H5Group& root, const std::vector<TraceSequence>& sequences) {
  H5Group group = root.CreateGroup("sequences");
  std::vector<int64_t> start, length;
  std::vector<uint8_t> complete, has_rows;
  std::vector<std::string> hashes;
  for (const TraceSequence& s : sequences) {
    start.push_back(s.start);
    length.push_back(s.length);
    complete.push_back(s.complete ? 1 : 0);
    has_rows.push_back(s.has_rows ? 1 : 0);
    hashes.push_back(s.sha256);
  }
  const std::vector<int64_t> shape = Shape1(sequences.size());
  group.Write<int64_t>("start", start, shape);
  group.Write<int64_t>("length", length, shape);
  group.Write<uint8_t>("complete", complete, shape);
  group.Write<uint8_t>("has_rows", has_rows, shape);
  group.WriteStrings("sha256", hashes);
}

}  // namespace

int64_t TotalTokens(const TraceHeader& header) {
  int64_t tokens = 0;
  for (const TraceSequence& s : header.sequences) tokens += s.length;
  return tokens;
}

int64_t RowTokens(const TraceHeader& header) {
  int64_t tokens = 0;
  for (const TraceSequence& s : header.sequences) tokens += s.has_rows ? s.length : 0;
  return tokens;
}

void ValidateHeader(const TraceHeader& header, const std::string& where) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: {}", where, what));
  };
  if (header.sequences.empty()) fail("no sequences");
  int64_t next = 0;
  for (size_t i = 0; i < header.sequences.size(); ++i) {
    const TraceSequence& s = header.sequences[i];
    if (s.start != next)
      fail(fmt::format("sequence {} starts at {}, expected {}", i, s.start, next));
    if (s.length <= 0 || s.length > kLargestTokens - next) {
      fail(fmt::format("sequence {} has the impossible length {}", i, s.length));
    }
    if (s.has_rows && !s.complete) fail(fmt::format("sequence {} keeps rows but is incomplete", i));
    if (!s.sha256.empty() && !IsHash(s.sha256))
      fail(fmt::format("sequence {} has a bad sha256", i));
    if (s.sha256.empty() != header.sequences[0].sha256.empty()) {
      fail(fmt::format("sequence {}: some sequences have a sha256 and some have none", i));
    }
    next += s.length;
  }
  if (header.layers.empty()) fail("no layers");
  for (size_t i = 0; i < header.layers.size(); ++i) {
    if (header.layers[i] < 0 || (i > 0 && header.layers[i] <= header.layers[i - 1])) {
      fail("layer numbers are not ascending");
    }
  }
}

void WriteHeader(H5Group& root, const TraceHeader& header) {
  root.SetAttribute("schema", kSchema);
  root.SetAttribute("manifest", header.manifest.ToJson());
  root.Write<int32_t>("layer_ids", header.layers, Shape1(header.layers.size()));
  WriteSequences(root, header.sequences);
  root.Write<uint64_t>("ngram_hashes", header.ngram_hashes, Shape1(header.ngram_hashes.size()));
}

TraceHeader ReadHeader(const H5Group& root) {
  const std::string schema = root.HasAttribute("schema") ? root.TextAttribute("schema") : "";
  if (!schema.starts_with(kSchemaPrefix)) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{} is HDF5 but no trace (no schema attribute {}...)", root.where(),
                            kSchemaPrefix));
  }
  if (schema != kSchema) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: trace schema {}, this build reads {}",
                                                     root.where(), schema, kSchema));
  }
  TraceHeader header;
  header.manifest = Value::FromJson(root.TextAttribute("manifest"), root.where() + ": manifest");
  if (!header.manifest.is_object()) {
    throw Error(ErrorCode::kFormat, root.where() + ": the manifest is not a JSON object");
  }
  header.layers = root.Read<int32_t>("layer_ids");
  header.sequences = ReadSequences(root);
  header.ngram_hashes = root.Read<uint64_t>("ngram_hashes");
  ValidateHeader(header, root.where());
  return header;
}

}  // namespace oscar
