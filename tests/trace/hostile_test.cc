// Traces that lie, are cut short or damaged end in a named error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/h5/file.h"
#include "support/golden.h"
#include "trace/fake_trace.h"

// HDF5 1.10 itself loses memory when it gives up on a damaged file; nothing else is excused.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FreshFolder;
using test::Thrown;
using ::testing::HasSubstr;

// Everything that a small one-layer trace says; tests change one thing.
struct Content {
  std::string schema = "oscar.trace/1";
  std::string manifest = "{\"model_id\":\"m\"}";
  std::vector<int32_t> layer_ids = {5};
  std::string layer_name = "5";
  std::vector<int64_t> start = {0, 4}, length = {4, 3};
  std::vector<uint8_t> complete = {1, 1}, has_rows = {1, 0};
  std::vector<std::string> sha256 = {std::string(64, 'a'), std::string(64, 'b')};
  int64_t q_heads = 2, kv_heads = 1, k_dim = 4, v_dim = 4, hidden = 8, window = 0, count = 7;
  double softmax_scale = 0.5;
  std::vector<int64_t> qq_shape = {2, 4, 4};
  double qq_value = 1;
  std::vector<int64_t> k_shape = {4, 1, 4};
  bool q_as_float = false, drop_rows = false, drop_sequences = false;
  std::vector<int64_t> o_proj_shape = {8, 8};
};

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

template <typename T>
void Write(H5Group& group, const std::string& name, T value, const std::vector<int64_t>& shape) {
  group.Write<T>(name, std::vector<T>(static_cast<size_t>(Product(shape)), value), shape);
}

template <typename T>
void WriteList(H5Group& group, const std::string& name, const std::vector<T>& list) {
  group.Write<T>(name, list, {static_cast<int64_t>(list.size())});
}

void WriteContent(const fs::path& path, const Content& c) {
  H5File file = H5File::Create(path);
  file.SetAttribute("schema", c.schema);
  file.SetAttribute("manifest", c.manifest);
  WriteList(file, "layer_ids", c.layer_ids);
  WriteList(file, "ngram_hashes", std::vector<uint64_t>{});
  if (!c.drop_sequences) {
    H5Group sequences = file.CreateGroup("sequences");
    WriteList(sequences, "start", c.start);
    WriteList(sequences, "length", c.length);
    WriteList(sequences, "complete", c.complete);
    WriteList(sequences, "has_rows", c.has_rows);
    sequences.WriteStrings("sha256", c.sha256);
  }
  {
    H5Group layer = file.CreateGroup("layers").CreateGroup(c.layer_name);
    layer.SetAttribute("q_heads", c.q_heads);
    layer.SetAttribute("kv_heads", c.kv_heads);
    layer.SetAttribute("k_dim", c.k_dim);
    layer.SetAttribute("v_dim", c.v_dim);
    layer.SetAttribute("hidden", c.hidden);
    layer.SetAttribute("softmax_scale", c.softmax_scale);
    layer.SetAttribute("window", c.window);
    layer.SetAttribute("rope", "full");
    layer.SetAttribute("count", c.count);
    layer.SetAttribute("sst_qq_hash", "");
    H5Group moments = layer.CreateGroup("moments");
    Write<double>(moments, "qq", c.qq_value, c.qq_shape);
    Write<double>(moments, "invented_later", 1, {2, 2});  // unknown moments are no error
    if (!c.drop_rows) {
      H5Group rows = layer.CreateGroup("rows");
      if (c.q_as_float) {
        Write<float>(rows, "q", 1, {4, 2, 4});
      } else {
        Write<BFloat16>(rows, "q", ToBFloat16(1), {4, 2, 4});
      }
      Write<BFloat16>(rows, "k", ToBFloat16(1), c.k_shape);
      Write<BFloat16>(rows, "v", ToBFloat16(1), {4, 1, 4});
    }
    Write<BFloat16>(layer, "o_proj", ToBFloat16(1), c.o_proj_shape);
  }
  file.Close();
}

struct Case {
  const char* name;
  void (*change)(Content&);
  ErrorCode code;
  const char* part;
};

const Case kCases[] = {
    {"other schema version", [](Content& c) { c.schema = "oscar.trace/2"; },
     ErrorCode::kUnsupported, "schema oscar.trace/2"},
    {"no trace", [](Content& c) { c.schema = "something"; }, ErrorCode::kFormat, "no trace"},
    {"broken manifest", [](Content& c) { c.manifest = "{\"a\":"; }, ErrorCode::kFormat, "manifest"},
    {"manifest no object", [](Content& c) { c.manifest = "[]"; }, ErrorCode::kFormat, "manifest"},
    {"no sequences group", [](Content& c) { c.drop_sequences = true; }, ErrorCode::kFormat,
     "/sequences: no such group"},
    {"sequence count", [](Content& c) { c.start = {0}; }, ErrorCode::kFormat, "/sequences/start"},
    {"gap",
     [](Content& c) {
       c.start = {0, 5};
     },
     ErrorCode::kFormat, "starts at 5, expected 4"},
    {"negative length",
     [](Content& c) {
       c.length = {4, -3};
     },
     ErrorCode::kFormat, "length -3"},
    {"zero length",
     [](Content& c) {
       c.length = {4, 0};
     },
     ErrorCode::kFormat, "length 0"},
    {"overflowing length",
     [](Content& c) {
       c.length = {4, INT64_MAX};
     },
     ErrorCode::kFormat, "impossible length"},
    {"rows of a cut sequence",
     [](Content& c) {
       c.complete = {0, 1};
     },
     ErrorCode::kFormat, "incomplete"},
    {"bad hash", [](Content& c) { c.sha256[1] = "xyz"; }, ErrorCode::kFormat, "bad sha256"},
    {"one hash missing", [](Content& c) { c.sha256[1] = ""; }, ErrorCode::kFormat, "have none"},
    {"no layers", [](Content& c) { c.layer_ids = {}; }, ErrorCode::kFormat, "no layers"},
    {"layer twice",
     [](Content& c) {
       c.layer_ids = {5, 5};
     },
     ErrorCode::kFormat, "ascending"},
    {"layer missing",
     [](Content& c) {
       c.layer_ids = {5, 6};
     },
     ErrorCode::kFormat, "lists [5, 6], found [5]"},
    {"layer misnamed", [](Content& c) { c.layer_name = "05"; }, ErrorCode::kFormat, "found [05]"},
    {"zero heads", [](Content& c) { c.q_heads = 0; }, ErrorCode::kFormat, "q_heads is 0"},
    {"huge heads", [](Content& c) { c.kv_heads = INT64_MAX; }, ErrorCode::kFormat, "kv_heads"},
    {"heads do not divide", [](Content& c) { c.kv_heads = 3; }, ErrorCode::kFormat,
     "2 query heads do not divide among 3"},
    {"negative dim", [](Content& c) { c.k_dim = -4; }, ErrorCode::kFormat, "k_dim is -4"},
    {"scale zero", [](Content& c) { c.softmax_scale = 0; }, ErrorCode::kFormat, "softmax scale"},
    {"scale nan", [](Content& c) { c.softmax_scale = std::nan(""); }, ErrorCode::kFormat,
     "softmax scale"},
    {"negative window", [](Content& c) { c.window = -1; }, ErrorCode::kFormat, "window is -1"},
    {"zero observations", [](Content& c) { c.count = 0; }, ErrorCode::kFormat,
     "0 tokens observed, the sequences have 7"},
    {"moment shape",
     [](Content& c) {
       c.qq_shape = {2, 4, 2};
     },
     ErrorCode::kFormat, "moments/qq: expected f64 [2, 4, 4], found f64 [2, 4, 2]"},
    {"moment rank",
     [](Content& c) {
       c.qq_shape = {2, 16};
     },
     ErrorCode::kFormat, "moments/qq"},
    {"rows too short",
     [](Content& c) {
       c.k_shape = {3, 1, 4};
     },
     ErrorCode::kFormat, "rows/k"},
    {"rows as floats", [](Content& c) { c.q_as_float = true; }, ErrorCode::kFormat,
     "rows/q: expected bf16 [4, 2, 4], found f32"},
    {"no rows", [](Content& c) { c.drop_rows = true; }, ErrorCode::kFormat, "rows/q"},
    {"projection shape",
     [](Content& c) {
       c.o_proj_shape = {8, 4};
     },
     ErrorCode::kFormat, "o_proj"},
};

TEST(Hostile, EveryLieIsNamed) {
  const fs::path file = FreshFolder("trace_hostile") / "a.trace.h5";
  WriteContent(file, {});
  EXPECT_EQ(TraceReader(file).ReadMoments(5).count, 7U);  // the unchanged content is fine
  for (const Case& c : kCases) {
    Content content;
    c.change(content);
    WriteContent(file, content);
    const Error error = Thrown([&] { TraceReader reader(file); });
    EXPECT_EQ(error.code(), c.code) << c.name << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(c.part)) << c.name;
    EXPECT_THAT(error.what(), HasSubstr("a.trace.h5")) << c.name;
  }
}

TEST(Hostile, SumsThatAreNotFiniteAreNamedWhenRead) {
  const fs::path file = FreshFolder("trace_inf") / "a.trace.h5";
  Content content;
  content.qq_value = std::numeric_limits<double>::quiet_NaN();
  WriteContent(file, content);
  const TraceReader reader(file);
  const Error error = Thrown([&] { reader.ReadMoments(5); });
  EXPECT_EQ(error.code(), ErrorCode::kNumeric);
  EXPECT_THAT(error.what(), HasSubstr("/layers/5: moment qq holds nan at element 0"));
}

// Reads everything that there is.
void ReadAll(const fs::path& file) {
  const TraceReader reader(file);
  for (const int layer : reader.header().layers) {
    reader.ReadMoments(layer);
    reader.ReadOProj(layer);
    for (size_t i = 0; i < reader.header().sequences.size(); ++i) {
      if (!reader.header().sequences[i].has_rows) continue;
      reader.ReadRows(layer, TraceReader::Rows::kQ, i);
      reader.ReadRows(layer, TraceReader::Rows::kV, i);
    }
  }
}

TEST(Hostile, TruncationAtAnyLengthIsRefused) {
  const fs::path folder = FreshFolder("trace_truncated");
  WriteContent(folder / "whole.h5", {});
  const std::string whole = ReadTextFile(folder / "whole.h5");
  for (size_t size = 0; size < whole.size(); size += 97) {
    std::ofstream(folder / "cut.h5", std::ios::binary)
        .write(whole.data(), static_cast<std::streamsize>(size));
    const Error error = Thrown([&] { ReadAll(folder / "cut.h5"); });
    EXPECT_EQ(error.code(), ErrorCode::kFormat) << size << ": " << error.what();
  }
}

TEST(Hostile, DamagedBytesGiveErrorsNeverOtherExceptions) {
  const fs::path folder = FreshFolder("trace_damaged");
  WriteContent(folder / "whole.h5", {});
  const std::string whole = ReadTextFile(folder / "whole.h5");
  Random random(DeriveSeed(3, "damage"));
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = whole;
    for (uint64_t i = 0; i < 1 + random.Below(4); ++i) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    std::ofstream(folder / "damaged.h5", std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    try {
      ReadAll(folder / "damaged.h5");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace oscar
