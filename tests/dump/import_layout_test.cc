// The same rows give the same bits however a dump folder lays them out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "dump/dump_folder.h"
#include "oscar/core/files.h"
#include "oscar/trace/trace.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FakeDump;
using test::FreshFolder;
using test::ImportRun;
using test::Layout;

// Everything of a trace that comes from rows.
struct Content {
  std::vector<int64_t> lengths;
  std::map<int, std::map<Moment, std::vector<double>>> sums;
  std::map<int, std::vector<float>> q, k, v;

  friend bool operator==(const Content&, const Content&) = default;
};

Content ReadContent(const fs::path& file) {
  Content content;
  const TraceReader reader(file);
  for (const TraceSequence& s : reader.header().sequences) content.lengths.push_back(s.length);
  for (const int layer : reader.header().layers) {
    for (const auto& [id, tensor] : reader.ReadMoments(layer).sums) {
      content.sums[layer][id] = tensor.data;
    }
    for (size_t i = 0; i < reader.header().sequences.size(); ++i) {
      if (!reader.header().sequences[i].has_rows) continue;
      const auto add = [&](TraceReader::Rows which, std::vector<float>& out) {
        const std::vector<float> rows = reader.ReadRows(layer, which, i);
        out.insert(out.end(), rows.begin(), rows.end());
      };
      add(TraceReader::Rows::kQ, content.q[layer]);
      add(TraceReader::Rows::kK, content.k[layer]);
      add(TraceReader::Rows::kV, content.v[layer]);
    }
  }
  return content;
}

Content Import(const std::string& name, const FakeDump& dump,
               const std::function<void(DumpOptions&)>& change = {}) {
  const fs::path folder = FreshFolder("import_" + name);
  dump.Write(folder / "dump");
  ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
  if (change) change(run.options);
  run.Run();
  return ReadContent(folder / "out.trace.h5");
}

TEST(ImportLayout, ThreeLayoutsGiveEqualBits) {
  FakeDump dump;
  dump.k_dim = 12;
  dump.v_dim = 8;
  const Content three = Import("three", dump);
  EXPECT_EQ(three.lengths, (std::vector<int64_t>{20, 13, 9}));
  EXPECT_EQ(three.q.at(0).size(), 42U * 4 * 12);
  dump.layout = Layout::kTwo;
  EXPECT_TRUE(Import("two", dump) == three);
  dump.layout = Layout::kFour;
  EXPECT_TRUE(Import("four", dump) == three);
}

TEST(ImportLayout, ChunkBordersBetweenSequencesDoNotMatter) {
  FakeDump dump;
  dump.chunks = {{6}, {20, 13, 9, 1, 30}};
  const Content one = Import("one_chunk", dump);
  dump.chunks = {{6}, {20}, {13, 9}, {1}, {30}};
  EXPECT_TRUE(Import("many_chunks", dump) == one);
}

TEST(ImportLayout, APromptSplitOverChunksEqualsTheWholePrompt) {
  FakeDump dump;
  dump.chunks = {{6}, {16, 46}, {1}};
  const Content whole = Import("whole", dump, [](DumpOptions& o) { o.prefill_chunk = "none"; });
  // The same rows in chunks of 32 tokens: 16 and 16 of the 46, then 30 and one more.
  dump.chunks = {{6}, {16, 16}, {30, 1}};
  const Content split = Import("split", dump, [](DumpOptions& o) { o.prefill_chunk = "32"; });
  EXPECT_EQ(split.lengths, (std::vector<int64_t>{16, 46, 1}));
  EXPECT_TRUE(split == whole);
  const Content apart = Import("apart", dump, [](DumpOptions& o) { o.prefill_chunk = "none"; });
  EXPECT_EQ(apart.lengths, (std::vector<int64_t>{16, 16, 30, 1}));
  EXPECT_EQ(apart.sums.at(0).at(Moment::kQq).size(), whole.sums.at(0).at(Moment::kQq).size());
  EXPECT_FALSE(apart.sums.at(0).at(Moment::kOo) == whole.sums.at(0).at(Moment::kOo));
}

TEST(ImportLayout, RowsBeyondSeqLensAreIgnoredEvenWhenTheyAreNan) {
  FakeDump dump;
  const Content plain = Import("plain", dump);
  dump.extra_rows = 5;
  EXPECT_TRUE(Import("extra", dump) == plain);
  dump.layout = Layout::kFour;
  EXPECT_TRUE(Import("extra_four", dump) == plain);
}

TEST(ImportLayout, ChunksAreTakenInNumericOrder) {
  FakeDump dump;
  dump.chunks = {{6}};
  for (int32_t i = 1; i <= 12; ++i) dump.chunks.push_back({i});
  const Content content = Import("numeric", dump);
  EXPECT_EQ(content.lengths, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(ImportLayout, TheWarmupChangesTheSumsOnlyWhenKept) {
  FakeDump dump;
  const Content skipped = Import("warmup_auto", dump);
  EXPECT_TRUE(Import("warmup_yes", dump, [](DumpOptions& o) { o.skip_warmup = "yes"; }) == skipped);
  const Content kept = Import("warmup_no", dump, [](DumpOptions& o) { o.skip_warmup = "no"; });
  EXPECT_EQ(kept.lengths, (std::vector<int64_t>{6, 20, 13, 9}));
}

TEST(ImportLayout, LayersCanBeChosenAndMayBeSparse) {
  FakeDump dump;
  dump.layers = {3, 7, 20};
  const Content all = Import("sparse", dump);
  EXPECT_EQ(all.sums.size(), 3U);
  const Content some = Import("sparse_some", dump, [](DumpOptions& o) { o.layers = "7"; });
  ASSERT_EQ(some.sums.size(), 1U);
  EXPECT_TRUE(some.sums.at(7) == all.sums.at(7));
}

TEST(ImportLayout, AnInterruptedImportContinuesToEqualBytes) {
  const fs::path folder = FreshFolder("import_resume");
  FakeDump dump;
  dump.layers = {0, 1, 2, 3};
  dump.Write(folder / "dump");
  ImportRun whole(folder / "dump", folder / "whole.trace.h5", dump);
  whole.Run();

  // Stops behind the first layer, as a signal would.
  class StopAfterOne final : public Progress {
   public:
    explicit StopAfterOne(CancelToken* cancel) : cancel_(cancel) {}
    void Begin(std::string_view, int64_t, std::string_view) override {}
    void Advance(int64_t) override { cancel_->Cancel(); }
    void Info(std::string_view) override {}
    void Warn(std::string_view) override {}
    void End() override {}

   private:
    CancelToken* cancel_;
  };
  ImportRun stopped(folder / "dump", folder / "stopped.trace.h5", dump);
  StopAfterOne stop(&stopped.cancel);
  const Error error = test::Thrown([&] { RunDump(stopped.options, {&stop, &stopped.cancel, 1}); });
  EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  EXPECT_THAT(error.hint(), ::testing::HasSubstr("--resume"));
  EXPECT_TRUE(fs::exists(folder / "stopped.trace.h5.part/layer_0.h5"));
  EXPECT_FALSE(fs::exists(folder / "stopped.trace.h5"));
  ImportRun resumed(folder / "dump", folder / "stopped.trace.h5", dump);
  resumed.options.resume = true;
  resumed.Run();
  EXPECT_TRUE(ReadTextFile(folder / "stopped.trace.h5") == ReadTextFile(folder / "whole.trace.h5"));
  EXPECT_TRUE(resumed.Run().was_complete);
}

TEST(ImportLayout, OtherFloatTypesAreRoundedAndSaidSo) {
  const fs::path folder = FreshFolder("import_f32");
  FakeDump dump;
  dump.chunks = {{6}, {4}};
  dump.layers = {0};
  dump.Write(folder / "dump");
  // 1 + 2^-10 needs more than the 8 bits of a bfloat16; 1.5 does not.
  for (const char* part : {"q", "k", "v"}) {
    const int64_t heads = *part == 'q' ? 4 : 2;
    for (size_t c = 0; c < 2; ++c) {
      const int64_t tokens = c == 0 ? 6 : 4;
      std::vector<float> rows(static_cast<size_t>(tokens * heads * 8), 1.5F);
      rows[0] = 1.0F + 1.0F / 1024;
      test::WriteTensor(dump.File(folder / "dump/layer_0" / part, c), DType::kF32,
                        {tokens, heads, 8}, rows.data(), rows.size() * sizeof(float));
    }
  }
  ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
  const DumpResult result = run.Run();
  EXPECT_THAT(result.notes, ::testing::Contains(::testing::HasSubstr("f32 rows were rounded")));
  EXPECT_EQ(ReadContent(folder / "out.trace.h5").k.at(0)[0], 1.0F);
  EXPECT_EQ(ReadContent(folder / "out.trace.h5").k.at(0)[1], 1.5F);
}

}  // namespace
}  // namespace oscar
