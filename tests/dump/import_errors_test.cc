// Dump folders that are broken or do not fit end in an error that names the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "dump/dump_folder.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FakeDump;
using test::FreshFolder;
using test::ImportRun;
using test::Layout;
using test::Thrown;
using test::WriteRows;
using test::WriteSeqLens;
using test::WriteTensor;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  void (*damage)(const fs::path& dump, DumpOptions& options);
  ErrorCode code;
  std::vector<std::string> parts;
};

std::vector<BFloat16> Ones(int64_t count) {
  return std::vector<BFloat16>(static_cast<size_t>(count), ToBFloat16(1));
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"no folder",
       [](const fs::path& d, DumpOptions&) { fs::remove_all(d); },
       ErrorCode::kIo,
       {"no such folder"}},
      {"no layers",
       [](const fs::path& d, DumpOptions&) {
         for (const char* layer : {"layer_0", "layer_1"}) fs::remove_all(d / layer);
       },
       ErrorCode::kFormat,
       {"layer_<number>"}},
      {"layer's folder with something behind the number",
       [](const fs::path& d, DumpOptions&) { fs::rename(d / "layer_1", d / "layer_1x"); },
       ErrorCode::kFormat,
       {"dump/layer_1x", "expected the name layer_<number>"}},
      {"layer's folder with a leading zero",
       [](const fs::path& d, DumpOptions&) { fs::rename(d / "layer_1", d / "layer_01"); },
       ErrorCode::kFormat,
       {"dump/layer_01", "without leading zeros"}},
      {"layer's folder without underscore",
       [](const fs::path& d, DumpOptions&) { fs::rename(d / "layer_1", d / "Layer1"); },
       ErrorCode::kFormat,
       {"dump/Layer1", "expected the name layer_<number>"}},
      {"layer number beyond all models",
       [](const fs::path& d, DumpOptions&) { fs::rename(d / "layer_1", d / "layer_4000000000"); },
       ErrorCode::kFormat,
       {"dump/layer_4000000000"}},
      {"two folders of one layer",
       [](const fs::path& d, DumpOptions&) {
         fs::copy(d / "layer_1", d / "layer_001", fs::copy_options::recursive);
       },
       ErrorCode::kFormat,
       {"dump/layer_001 and ", "dump/layer_1 are the same layer"}},
      {"part missing",
       [](const fs::path& d, DumpOptions&) { fs::remove_all(d / "layer_1/v"); },
       ErrorCode::kIo,
       {"layer_1/v", "no such folder"}},
      {"lengths missing",
       [](const fs::path& d, DumpOptions&) { fs::remove_all(d / "layer_0/seq_lens"); },
       ErrorCode::kIo,
       {"layer_0/seq_lens"}},
      {"part empty",
       [](const fs::path& d, DumpOptions&) {
         fs::remove_all(d / "layer_1/q");
         fs::create_directory(d / "layer_1/q");
       },
       ErrorCode::kFormat,
       {"layer_1/q holds no chunk"}},
      {"chunk missing in one part",
       [](const fs::path& d, DumpOptions&) { fs::remove(d / "layer_1/k/2.pt"); },
       ErrorCode::kMismatch,
       {"layer_1", "k has the chunks [0, 1], q has [0, 1, 2]"}},
      {"chunk missing in the middle",
       [](const fs::path& d, DumpOptions&) {
         for (const char* part : {"q", "k", "v", "seq_lens"})
           fs::remove(d / "layer_1" / part / "1.pt");
       },
       ErrorCode::kFormat,
       {"layer_1/q", "chunk 1 is missing (2 follows)"}},
      {"last chunk missing in one layer",
       [](const fs::path& d, DumpOptions&) {
         for (const char* part : {"q", "k", "v", "seq_lens"})
           fs::remove(d / "layer_1" / part / "2.pt");
       },
       ErrorCode::kMismatch,
       {"layer 1 and layer 0 hold different tokens in their chunk number 2"}},
      {"other token count in one layer",
       [](const fs::path& d, DumpOptions&) {
         WriteSeqLens(d / "layer_1/seq_lens/1.pt", {20, 12});
       },
       ErrorCode::kMismatch,
       {"layer 1 and layer 0 hold different tokens in their chunk number 1"}},
      {"stray file",
       [](const fs::path& d, DumpOptions&) { std::ofstream(d / "layer_0/q/copy.pt") << "x"; },
       ErrorCode::kFormat,
       {"copy.pt", "<number>.pt"}},
      {"truncated rows",
       [](const fs::path& d, DumpOptions&) {
         WriteRows(d / "layer_1/k/1.pt", Ones(32 * 2 * 8), 2, 8);
       },
       ErrorCode::kFormat,
       {"layer_1/k/1.pt", "32 rows", "33"}},
      {"negative length",
       [](const fs::path& d, DumpOptions&) {
         WriteSeqLens(d / "layer_0/seq_lens/1.pt", {40, -7});
       },
       ErrorCode::kFormat,
       {"layer_0/seq_lens/1.pt", "-7"}},
      {"lengths with two dimensions",
       [](const fs::path& d, DumpOptions&) {
         const int32_t lengths[] = {20, 13};
         WriteTensor(d / "layer_0/seq_lens/1.pt", DType::kI32, {1, 2}, lengths, sizeof lengths);
       },
       ErrorCode::kFormat,
       {"layer_0/seq_lens/1.pt", "[1, 2]"}},
      {"lengths that are no integers",
       [](const fs::path& d, DumpOptions&) {
         const float lengths[] = {20, 13};
         WriteTensor(d / "layer_0/seq_lens/1.pt", DType::kF32, {2}, lengths, sizeof lengths);
       },
       ErrorCode::kUnsupported,
       {"layer_0/seq_lens/1.pt", "f32"}},
      {"integer rows",
       [](const fs::path& d, DumpOptions&) {
         const std::vector<int32_t> rows(33 * 2 * 8, 1);
         WriteTensor(d / "layer_0/v/1.pt", DType::kI32, {33, 2, 8}, rows.data(), rows.size() * 4);
       },
       ErrorCode::kUnsupported,
       {"layer_0/v/1.pt", "i32"}},
      {"mixed float types",
       [](const fs::path& d, DumpOptions&) {
         const std::vector<float> rows(33 * 2 * 8, 1);
         WriteTensor(d / "layer_0/v/1.pt", DType::kF32, {33, 2, 8}, rows.data(), rows.size() * 4);
       },
       ErrorCode::kMismatch,
       {"layer_0/v/1.pt", "rows of type f32, elsewhere bf16"}},
      {"too few heads: one tensor-parallel rank",
       [](const fs::path&, DumpOptions& o) { o.q_heads = 64, o.kv_heads = 2; },
       ErrorCode::kFormat,
       {"layer_0/q/0.pt", "[6, 4, 8] does not fit 64 heads"}},
      {"wrong KV heads",
       [](const fs::path&, DumpOptions& o) { o.kv_heads = 4; },
       ErrorCode::kFormat,
       {"layer_0/k/0.pt", "does not fit 4 heads"}},
      {"heads read from a flat layout do not fit together",
       [](const fs::path& d, DumpOptions&) {
         for (const char* layer : {"layer_0", "layer_1"}) {
           for (const auto& [chunk, tokens] : {std::pair{0, 6}, {1, 33}, {2, 9}}) {
             const std::string name = std::to_string(chunk) + ".pt";
             WriteRows(d / layer / "q" / name, Ones(tokens * 4 * 6), 4, 6, Layout::kTwo);
           }
         }
       },
       ErrorCode::kMismatch,
       {"head dims q 6, k 8, v 8"}},
      {"heads and tokens exchanged",
       [](const fs::path& d, DumpOptions&) {
         WriteRows(d / "layer_0/q/2.pt", Ones(4 * 9 * 8), 9, 8);
       },
       ErrorCode::kFormat,
       {"layer_0/q/2.pt", "[4, 9, 8] does not fit 4 heads"}},
      {"other head dim in a later chunk",
       [](const fs::path& d, DumpOptions&) {
         WriteRows(d / "layer_1/v/2.pt", Ones(9 * 2 * 4), 2, 4);
       },
       ErrorCode::kMismatch,
       {"layer 1, chunk 2", "v 4"}},
      {"no tensor",
       [](const fs::path& d, DumpOptions&) {
         TorchOut text;
         text.data = std::string("not a tensor");
         WriteTorchFile(d / "layer_0/q/1.pt", text, "1");
       },
       ErrorCode::kFormat,
       {"layer_0/q/1.pt", "expected a tensor"}},
      {"no PyTorch file",
       [](const fs::path& d, DumpOptions&) { std::ofstream(d / "layer_0/q/1.pt") << "garbage"; },
       ErrorCode::kFormat,
       {"layer_0/q/1.pt"}},
      {"layer not there",
       [](const fs::path&, DumpOptions& o) { o.layers = "0-2"; },
       ErrorCode::kUsage,
       {"there is no layer 2"}},
      {"bad prefill chunk",
       [](const fs::path&, DumpOptions& o) { o.prefill_chunk = "big"; },
       ErrorCode::kUsage,
       {"--prefill-chunk big"}},
      {"bad budget",
       [](const fs::path&, DumpOptions& o) { o.dump_budget = "-5"; },
       ErrorCode::kUsage,
       {"--dump-budget -5"}},
  };
  return cases;
}

TEST(ImportErrors, NameWhatAndWhereAndWriteNothing) {
  const fs::path folder = FreshFolder("import_errors");
  for (const Case& c : Cases()) {
    fs::remove_all(folder / "dump");
    FakeDump().Write(folder / "dump");
    ImportRun run(folder / "dump", folder / "out.trace.h5", FakeDump());
    c.damage(folder / "dump", run.options);
    const Error error = Thrown([&] { run.Run(); });
    EXPECT_EQ(error.code(), c.code) << c.name << ": " << error.what();
    for (const std::string& part : c.parts) EXPECT_THAT(error.what(), HasSubstr(part)) << c.name;
    EXPECT_FALSE(fs::exists(folder / "out.trace.h5")) << c.name;
    EXPECT_FALSE(fs::exists(folder / "out.trace.h5.part")) << c.name;
  }
}

TEST(ImportErrors, ValuesThatAreNotFiniteAreNamedByLayerChunkAndRow) {
  for (const uint16_t bits : std::vector<uint16_t>{0x7fc0, 0x7f80, 0xff80, 0xffff, 0x7f81}) {
    for (const Layout layout : {Layout::kThree, Layout::kFour}) {
      const fs::path folder = FreshFolder("import_nan");
      FakeDump dump;
      dump.layout = layout;
      dump.Write(folder / "dump");
      std::vector<BFloat16> rows = Ones(33 * 2 * 8);
      rows[(17 * 2 + 1) * 8 + 3].bits = bits;
      WriteRows(folder / "dump/layer_1/v/1.pt", rows, 2, 8, layout);
      ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
      const Error error = Thrown([&] { run.Run(); });
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_THAT(error.what(), HasSubstr("layer 1, chunk 1: v holds"));
      EXPECT_THAT(error.what(), HasSubstr("in row 17"));
      EXPECT_FALSE(fs::exists(folder / "out.trace.h5"));
    }
  }
}

TEST(ImportErrors, AllZeroRowsAreRefused) {
  const fs::path folder = FreshFolder("import_zero");
  FakeDump dump;
  dump.Write(folder / "dump");
  for (const auto& [chunk, tokens] : {std::pair{0, 6}, {1, 33}, {2, 9}}) {
    WriteRows(dump.File(folder / "dump/layer_1/k", static_cast<size_t>(chunk)),
              std::vector<BFloat16>(static_cast<size_t>(tokens) * 16, BFloat16{0}), 2, 8);
  }
  ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
  const Error error = Thrown([&] { run.Run(); });
  EXPECT_EQ(error.code(), ErrorCode::kData);
  EXPECT_THAT(error.what(), HasSubstr("layer 1: every entry of moment kk is zero"));
}

TEST(ImportErrors, StrangersAreIgnoredWithAWarning) {
  const fs::path folder = FreshFolder("import_strangers");
  FakeDump dump;
  dump.Write(folder / "dump");
  dump.Write(folder / "clean");
  std::ofstream(folder / "dump/log.txt") << "x";
  std::ofstream(folder / "dump/layers.txt") << "x";
  std::ofstream(folder / "dump/layer_1/q/0.pt.tmp") << "x";
  fs::create_directory(folder / "dump/layer_0/attn");
  fs::create_directory(folder / "dump/rotations");
  ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
  EXPECT_THAT(run.Run().notes,
              testing::Contains(HasSubstr("ignored what is no part of a dump: layers.txt, log.txt, "
                                          "rotations and 2 more")));
  ImportRun clean(folder / "clean", folder / "clean.trace.h5", dump);
  EXPECT_THAT(clean.Run().notes, testing::Not(testing::Contains(HasSubstr("ignored"))));
}

TEST(ImportErrors, HeadDimsThatCannotBePackedAreTakenWithAWarning) {
  const fs::path folder = FreshFolder("import_odd");
  FakeDump dump;
  dump.v_dim = 6;
  dump.Write(folder / "dump");
  ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
  EXPECT_THAT(run.Run().notes,
              testing::Contains(HasSubstr("layer 0: head dim 6 of values is no multiple of 4")));
  EXPECT_TRUE(fs::exists(folder / "out.trace.h5"));
}

TEST(ImportErrors, DryRunsWriteNothing) {
  const fs::path folder = FreshFolder("import_dry");
  FakeDump dump;
  dump.Write(folder / "dump");
  ImportRun run(folder / "dump", folder / "out.trace.h5", dump);
  run.options.dry_run = true;
  const DumpResult result = run.Run();
  EXPECT_GT(result.estimate.memory_bytes, 0);
  EXPECT_GT(result.estimate.trace_bytes, 0);
  EXPECT_GT(result.estimate.seconds, 0);
  EXPECT_FALSE(result.estimate.time_basis.empty());
  EXPECT_THAT(DumpText(result), HasSubstr("dry run: nothing was written"));
  EXPECT_FALSE(fs::exists(folder / "out.trace.h5"));
  EXPECT_FALSE(fs::exists(folder / "out.trace.h5.part"));
}

}  // namespace
}  // namespace oscar
