#include "oscar/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "support/golden.h"
#include "trace/fake_trace.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FakeHeader;
using test::FakeLayer;
using test::FakeShape;
using test::FreshFolder;
using test::Thrown;
using test::WriteFakeTrace;
using ::testing::HasSubstr;

// 300 and 258 tokens with rows: more than one chunk of 256 tokens, and pieces that end inside one.
const std::vector<int64_t> kLengths = {300, 1, 257, 30};

TEST(Trace, EverythingComesBackBitForBit) {
  const fs::path file = FreshFolder("trace_round_trip") / "a.trace.h5";
  const TraceHeader header = FakeHeader(kLengths, 3, {2, 10, 11});
  WriteFakeTrace(file, header);
  EXPECT_FALSE(fs::exists(file.string() + ".part"));
  const TraceReader reader(file);
  EXPECT_EQ(reader.header().manifest, header.manifest);
  EXPECT_EQ(reader.header().layers, header.layers);
  EXPECT_EQ(reader.header().ngram_hashes, header.ngram_hashes);
  ASSERT_EQ(reader.header().sequences.size(), kLengths.size());
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const TraceSequence& a = reader.header().sequences[i];
    const TraceSequence& b = header.sequences[i];
    EXPECT_EQ(a.start, b.start);
    EXPECT_EQ(a.length, b.length);
    EXPECT_EQ(a.complete, b.complete);
    EXPECT_EQ(a.has_rows, b.has_rows);
    EXPECT_EQ(a.sha256, b.sha256);
  }
  EXPECT_EQ(reader.row_tokens(), 558);
  for (const int layer : header.layers) {
    const LayerCapture expected = FakeLayer(layer, header);
    EXPECT_EQ(reader.shape(layer), FakeShape());
    const LayerMoments moments = reader.ReadMoments(layer);
    EXPECT_EQ(moments.count, expected.moments.count);
    EXPECT_EQ(moments.sst_qq_hash, expected.moments.sst_qq_hash);
    ASSERT_EQ(moments.sums.size(), expected.moments.sums.size());
    for (const auto& [id, tensor] : expected.moments.sums) {
      EXPECT_EQ(moments.At(id).shape, tensor.shape);
      EXPECT_EQ(moments.At(id).data, tensor.data);
    }
    const auto check = [&](TraceReader::Rows which, const std::vector<BFloat16>& all, int64_t row) {
      int64_t begin = 0;
      for (size_t s = 0; s < 3; ++s) {
        const std::vector<float> rows = reader.ReadRows(layer, which, s);
        ASSERT_EQ(static_cast<int64_t>(rows.size()), kLengths[s] * row);
        for (size_t i = 0; i < rows.size(); ++i) {
          ASSERT_EQ(rows[i], ToFloat(all[static_cast<size_t>(begin * row) + i]));
        }
        begin += kLengths[s];
      }
    };
    check(TraceReader::Rows::kQ, expected.q, 24);
    check(TraceReader::Rows::kK, expected.k, 12);
    check(TraceReader::Rows::kV, expected.v, 6);
    const auto o_proj = reader.ReadOProj(layer);
    ASSERT_TRUE(o_proj.has_value());
    for (size_t i = 0; i < o_proj->size(); ++i) {
      ASSERT_EQ((*o_proj)[i], ToFloat(expected.o_proj[i]));
    }
  }
}

TEST(Trace, WorksWithoutRowsAndWithoutOutputProjection) {
  const fs::path file = FreshFolder("trace_no_rows") / "a.trace.h5";
  const TraceHeader header = FakeHeader({5}, 0, {0});
  LayerCapture layer = FakeLayer(0, header);
  layer.o_proj.clear();
  TraceWriter writer(file, header, false, false);
  writer.WriteLayer(layer);
  writer.Finish();
  const TraceReader reader(file);
  EXPECT_EQ(reader.row_tokens(), 0);
  EXPECT_FALSE(reader.ReadOProj(0).has_value());
  const Error error = Thrown([&] { reader.ReadRows(0, TraceReader::Rows::kQ, 0); });
  EXPECT_EQ(error.code(), ErrorCode::kData);
  EXPECT_THAT(error.what(), HasSubstr("sequence 0 has no rows"));
  EXPECT_EQ(Thrown([&] { reader.ReadMoments(1); }).code(), ErrorCode::kData);
}

TEST(Trace, EqualRunsGiveEqualBytesAndTimesStayOut) {
  const fs::path folder = FreshFolder("trace_equal");
  TraceHeader header = FakeHeader(kLengths, 2, {0, 1});
  header.manifest["volatile"]["time"] = "yesterday";
  WriteFakeTrace(folder / "a.trace.h5", header);
  header.manifest["volatile"]["time"] = "today";
  WriteFakeTrace(folder / "b.trace.h5", header);
  EXPECT_TRUE(ReadTextFile(folder / "a.trace.h5") == ReadTextFile(folder / "b.trace.h5"));
  EXPECT_EQ(TraceReader(folder / "a.trace.h5").header().manifest.Find("volatile"), nullptr);
}

TEST(Trace, ExistingFilesAreSafeWithoutForce) {
  const fs::path file = FreshFolder("trace_exists") / "a.trace.h5";
  const TraceHeader header = FakeHeader({8}, 1, {0});
  WriteFakeTrace(file, header);
  const std::string before = ReadTextFile(file);
  const Error error = Thrown([&] { TraceWriter(file, header, false, false); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("exists already"));
  EXPECT_THAT(error.hint(), HasSubstr("--force"));
  EXPECT_TRUE(ReadTextFile(file) == before);
  EXPECT_FALSE(fs::exists(file.string() + ".part"));
  const TraceHeader other = FakeHeader({8}, 1, {0}, 2);
  {
    TraceWriter writer(file, other, false, true);
    EXPECT_TRUE(ReadTextFile(file) == before);  // replaced at the end, not at the start
    writer.WriteLayer(FakeLayer(0, other));
    writer.Finish();
  }
  EXPECT_FALSE(ReadTextFile(file) == before);
}

TEST(Trace, UnwritablePlacesAreNamed) {
  const fs::path folder = FreshFolder("trace_places");
  const TraceHeader header = FakeHeader({8}, 0, {0});
  const Error missing = Thrown([&] { TraceWriter(folder / "no/a.h5", header, false, false); });
  EXPECT_EQ(missing.code(), ErrorCode::kIo);
  EXPECT_THAT(missing.what(), HasSubstr("there is no folder"));
  const Error is_folder = Thrown([&] { TraceWriter(folder, header, false, true); });
  EXPECT_EQ(is_folder.code(), ErrorCode::kIo);
  EXPECT_THAT(is_folder.what(), HasSubstr("it is a folder"));
}

TEST(Trace, UnfinishedRunsNeedResumeOrForce) {
  const fs::path file = FreshFolder("trace_unfinished") / "a.trace.h5";
  const TraceHeader header = FakeHeader({8}, 1, {0, 1});
  { TraceWriter(file, header, false, false).WriteLayer(FakeLayer(0, header)); }
  const Error error = Thrown([&] { TraceWriter(file, header, false, false); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.hint(), HasSubstr("--resume"));
  {
    TraceWriter writer(file, header, true, false);
    EXPECT_TRUE(writer.HasLayer(0));
    EXPECT_FALSE(writer.HasLayer(1));
    const Error missing = Thrown([&] { writer.Finish(); });
    EXPECT_EQ(missing.code(), ErrorCode::kData);
    EXPECT_THAT(missing.what(), HasSubstr("layers [1] were not written"));
  }
  EXPECT_FALSE(TraceWriter(file, header, false, true).HasLayer(0));
}

TEST(Trace, ResumeListsWhatDiffers) {
  const fs::path file = FreshFolder("trace_differs") / "a.trace.h5";
  const TraceHeader header = FakeHeader({8, 9}, 1, {0, 1});
  { TraceWriter(file, header, false, false).WriteLayer(FakeLayer(0, header)); }
  const auto message = [&](const TraceHeader& other) {
    const Error error = Thrown([&] { TraceWriter(file, other, true, false); });
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return std::string(error.what());
  };
  TraceHeader other = header;
  other.manifest["model_id"] = "another";
  EXPECT_THAT(message(other), HasSubstr("model_id: \"fake\" != \"another\""));
  other = header;
  other.layers = {0, 1, 2};
  EXPECT_THAT(message(other), HasSubstr("layers: [0, 1] != [0, 1, 2]"));
  other = header;
  other.sequences.pop_back();
  EXPECT_THAT(message(other), HasSubstr("number of sequences: 2 != 1"));
  other = header;
  other.sequences[1].sha256[0] = other.sequences[1].sha256[0] == 'a' ? 'b' : 'a';
  EXPECT_THAT(message(other), HasSubstr("sequence 1: other tokens"));
  other = header;
  other.sequences[0].has_rows = false;
  EXPECT_THAT(message(other), HasSubstr("sequence 0: complete and rows flags"));
  // Times may differ, and --force starts over.
  other = header;
  other.manifest["volatile"]["host"] = "elsewhere";
  EXPECT_TRUE(TraceWriter(file, other, true, false).HasLayer(0));
  other.manifest["model_id"] = "another";
  EXPECT_FALSE(TraceWriter(file, other, true, true).HasLayer(0));
}

// Nobody gave the number of threads or the revision, so "give the options of the first run" is no
// help.
TEST(Trace, ResumeSaysWhatCanBeDone) {
  const fs::path file = FreshFolder("trace_hints") / "a.trace.h5";
  TraceHeader header = FakeHeader({8, 9}, 1, {0, 1});
  header.manifest["threads"] = 3;
  header.manifest["git_revision"] = "abc";
  { TraceWriter(file, header, false, false).WriteLayer(FakeLayer(0, header)); }
  const auto hint = [&](const char* key, const Value& value) {
    TraceHeader other = header;
    other.manifest[key] = value;
    return Thrown([&] { TraceWriter(file, other, true, false); }).hint();
  };
  EXPECT_THAT(hint("model_id", "another"), HasSubstr("options of the first run"));
  EXPECT_THAT(hint("threads", 2), HasSubstr("--threads 3"));
  EXPECT_THAT(hint("git_revision", "def"), HasSubstr("only the build that began"));
  EXPECT_THAT(hint("git_revision", "def"), testing::Not(HasSubstr("options of the first run")));
}

TEST(Trace, TwoProcessesCannotWriteOneTrace) {
  const fs::path file = FreshFolder("trace_lock") / "a.trace.h5";
  const TraceHeader header = FakeHeader({8}, 1, {0});
  const TraceWriter writer(file, header, false, false);
  const Error error = Thrown([&] { TraceWriter(file, header, true, false); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("another process"));
}

TEST(Trace, LayersWithNothingToLearnAreRefused) {
  const fs::path file = FreshFolder("trace_refused") / "a.trace.h5";
  const TraceHeader header = FakeHeader({8}, 1, {4});
  TraceWriter writer(file, header, false, false);
  const auto refuse = [&](const LayerCapture& layer, ErrorCode code, const std::string& part) {
    const Error error = Thrown([&] { writer.WriteLayer(layer); });
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), HasSubstr("layer 4"));
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_FALSE(writer.HasLayer(4));
    EXPECT_FALSE(fs::exists(writer.part_folder() / "layer_4.h5"));
  };
  LayerCapture layer = FakeLayer(4, header);
  layer.moments.count = 0;
  refuse(layer, ErrorCode::kData, "0 of 8 tokens were observed");
  layer = FakeLayer(4, header);
  layer.moments.sums[Moment::kKk].data[5] = std::numeric_limits<double>::infinity();
  refuse(layer, ErrorCode::kNumeric, "moment kk holds inf at element 5");
  layer = FakeLayer(4, header);
  std::fill_n(layer.moments.sums[Moment::kVv].data.begin(), 18, 0);
  refuse(layer, ErrorCode::kData, "every entry of moment vv is zero");
  writer.WriteLayer(FakeLayer(4, header));
  writer.Finish();
}

TEST(Trace, RowsThatAreNotFiniteAreNamedByTokenAndSequence) {
  const fs::path file = FreshFolder("trace_nan") / "a.trace.h5";
  const TraceHeader header = FakeHeader({8, 5}, 2, {3});
  LayerCapture layer = FakeLayer(3, header);
  layer.v[(8 + 2) * 6 + 1].bits = 0x7f80;
  TraceWriter writer(file, header, false, false);
  writer.WriteLayer(layer);
  writer.Finish();
  const TraceReader reader(file);
  EXPECT_EQ(reader.ReadRows(3, TraceReader::Rows::kV, 0).size(), 48U);
  const Error error = Thrown([&] { reader.ReadRows(3, TraceReader::Rows::kV, 1); });
  EXPECT_EQ(error.code(), ErrorCode::kNumeric);
  EXPECT_THAT(error.what(), HasSubstr("/layers/3/rows/v: inf at token 2 of sequence 1"));
}

}  // namespace
}  // namespace oscar
