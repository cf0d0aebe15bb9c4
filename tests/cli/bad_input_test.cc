// Bad input to whole programs: one clear error, the documented exit code, nothing written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "oscar/core/files.h"
#include "oscar/core/value.h"
#include "support/golden.h"
#include "support/process.h"
#include "trace/fake_trace.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kUsage = 2;
constexpr int kFailed = 3;

struct Case {
  const char* name;
  const char* program;
  // Words that start with @ stand for files of the fixture: @model, @text, @trace, @heldout,
  // @entry,
  // @junk, @empty, @missing, @out (a path in the folder that must stay empty).
  std::vector<std::string> arguments;
  int exit_code;
  const char* message;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Good inputs, made once by the programs themselves, and bad ones.
class Inputs {
 public:
  static const Inputs& Get() {
    static const Inputs inputs;
    return inputs;
  }

  std::string Resolve(const std::string& word) const {
    if (!word.starts_with('@')) return word;
    if (word == "@model") return (test::ModelOracle() / "tiny" / "llama").string();
    if (word == "@othermodel") return (test::ModelOracle() / "tiny" / "qwen3").string();
    if (word == "@dump") {
      return (test::OfficialVectors() / "calibration" / "A1_d16" / "dump").string();
    }
    if (word == "@pipe") return pipe_.string();
    return (folder_ / word.substr(1)).string();
  }
  const fs::path& folder() const { return folder_; }
  const fs::path& out() const { return out_; }

 private:
  Inputs()
      : folder_(test::FreshFolder("bad_input")),
        out_(folder_ / "out"),
        pipe_(test::FreshFolder("bad_input_pipe") / "pipe") {
    fs::create_directories(out_);
    if (::mkfifo(pipe_.c_str(), 0600) != 0) throw std::runtime_error("mkfifo");
    WriteText();
    Make("oscar-dump", Dump("text.txt", "trace"));
    Make("oscar-dump", Dump("heldout.txt", "heldout"));
    std::vector<std::string> other = Dump("heldout.txt", "othertrace");
    other[1] = Resolve("@othermodel");
    Make("oscar-dump", other);
    Make("oscar-calibrate", {"--traces", Resolve("@trace"), "--model-name", "tiny", "--sink", "4",
                             "--recent", "16", "--out", Resolve("@entry")});
    Damage();
    WriteOddTrace();
  }

  std::vector<std::string> Dump(const std::string& text, const std::string& trace) const {
    return {"--model",       Resolve("@model"),
            "--text",        (folder_ / text).string(),
            "--tokens",      "512",
            "--window",      "128",
            "--out",         Resolve("@" + trace),
            "--rows-tokens", "512"};
  }

  static void Make(const std::string& program, const std::vector<std::string>& arguments) {
    const test::ProcessResult result =
        test::Run(program, arguments, test::FreshFolder("bad_input_setup"));
    if (result.exit_code != 0) throw std::runtime_error(program + ": " + result.err);
  }

  void WriteText() const {
    // Different words, so that the two texts share nothing.
    std::string text, heldout;
    for (int i = 0; i < 4000; ++i) {
      text += std::to_string(i * 7919 % 1000003) + (i % 9 == 0 ? "\n" : " ");
      heldout += std::to_string(2000003 + i * 104729 % 1000003) + (i % 7 == 0 ? "\n" : " ");
    }
    WriteTextFile(folder_ / "text.txt", text);
    WriteTextFile(folder_ / "heldout.txt", heldout);
    WriteTextFile(folder_ / "junk", "this is no file of any known format\n");
    WriteTextFile(folder_ / "empty", "");
    WriteTextFile(folder_ / "empty.txt", "");
    WriteTextFile(folder_ / "bad.jsonl", "{\"text\": \"fine\"}\n{\"text\": 7}\n");
    WriteTextFile(folder_ / "bad.csv", "question,A,B,C,D,answer\nwhich?,1,2,3,4,E\n");
    WriteTextFile(folder_ / "columns.csv", "colour,size\nred,7\n");
    WriteTextFile(folder_ / "latin1.txt", "caf\xe9 au lait\n");
    WriteTextFile(folder_ / "ids.txt", "1 2 3\n4 five 6\n");
    WriteTextFile(folder_ / "bigids.txt", "1 2 99999999\n");
    WriteTextFile(folder_ / "broken.json", "{\n  \"schema\": \"oscar.gates/1\",\n}\n");
    WriteTextFile(folder_ / "gates.json", "{\"schema\": \"oscar.gates/1\", \"gates\": [{}]}");
    WriteTextFile(folder_ / "threads.conf", "threads = 1\n");
    WriteTextFile(folder_ / "unknown.conf", "tokenz = 5\n");
    WriteTextFile(folder_ / "nested.conf", "# settings\nconfig = \"other.conf\"\n");
    WriteTextFile(folder_ / "open.conf", "text = [\"a#b.txt\",\n");
  }

  // A trace of heads that no 2-bit cache can hold: 6 channels of keys, 3 of values.
  void WriteOddTrace() const {
    const TraceHeader header = test::FakeHeader({64}, 1, {0});
    TraceWriter writer(folder_ / "odd.h5", header, false, false);
    writer.WriteLayer(test::FakeLayer(0, header));
    writer.Finish();
  }

  void Damage() const {
    const std::string trace = test::Slurp(folder_ / "trace");
    WriteTextFile(folder_ / "truncated.h5", trace.substr(0, trace.size() / 2));
    fs::copy(folder_ / "entry", folder_ / "halfpair", fs::copy_options::recursive);
    fs::copy(folder_ / "entry", folder_ / "swapped", fs::copy_options::recursive);
    fs::copy(folder_ / "entry", folder_ / "damaged", fs::copy_options::recursive);
    for (const auto& file : fs::directory_iterator(folder_ / "halfpair")) {
      if (file.path().filename().string().starts_with("v_")) fs::remove(file.path());
    }
    SwapPair(folder_ / "swapped");
    for (const auto& file : fs::directory_iterator(folder_ / "damaged")) {
      if (!file.path().filename().string().starts_with("k_")) continue;
      std::string bytes = test::Slurp(file.path());
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
      WriteTextFile(file.path(), bytes);
    }
    fs::create_directories(folder_ / "emptyfolder");
    fs::create_directories(folder_ / "misnamed" / "layer_00");
    fs::create_directories(folder_ / "noconfig");
    fs::create_directories(folder_ / "gpt");
    WriteTextFile(folder_ / "gpt" / "config.json", R"({"architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2"})");
  }

  static void SwapPair(const fs::path& folder) {
    fs::path key, value;
    for (const auto& file : fs::directory_iterator(folder)) {
      if (file.path().filename().string().starts_with("k_")) key = file.path();
      if (file.path().filename().string().starts_with("v_")) value = file.path();
    }
    fs::rename(key, folder / "x");
    fs::rename(value, key);
    fs::rename(folder / "x", value);
    fs::remove(folder / "manifest.json");
  }

  fs::path folder_, out_;
  fs::path pipe_;  // in a folder of its own: nobody can take a snapshot of its content
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      // Usage: nothing is started.
      {"DumpUnknownOption", "oscar-dump", {"--modle", "@model"}, kUsage, "--modle"},
      {"DumpNothingGiven", "oscar-dump", {}, kUsage, "--model"},
      {"DumpNoInput", "oscar-dump", {"--out", "@out/t.h5"}, kUsage, "--model"},
      {"DumpModelWithoutText",
       "oscar-dump",
       {"--model", "@model", "--out", "@out/t.h5"},
       kUsage,
       "--text"},
      {"DumpTextWithoutModel",
       "oscar-dump",
       {"--text", "@text.txt", "--out", "@out/t.h5"},
       kUsage,
       "--model"},
      {"DumpTextAndIds",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--token-ids", "@ids.txt", "--out",
        "@out/t.h5"},
       kUsage,
       "--token-ids"},
      {"DumpWindowZero",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--window", "0", "--out", "@out/t.h5"},
       kUsage,
       "--window: expected a whole number"},
      {"DumpWindowBeyondTheModel",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--out", "@out/t.h5"},
       kFailed,
       "positions below 512"},
      {"DumpTokensOctal",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--tokens", "0512", "--out", "@out/t.h5"},
       kUsage,
       "found '0512'"},
      {"DumpUnknownMoment",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--moments", "qq,zz", "--out", "@out/t.h5"},
       kUsage,
       "zz"},
      {"DumpUnknownTemplate",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--template", "vicuna", "--out", "@out/t.h5"},
       kUsage,
       "one of auto, none, chatml"},
      {"DumpLayerOutOfRange",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--layers", "0-9", "--out", "@out/t.h5"},
       kUsage,
       "9"},
      {"DumpImportWithoutHeads",
       "oscar-dump",
       {"--import", "@dump", "--out", "@out/t.h5"},
       kUsage,
       "--q-heads"},
      {"DumpConfigUnknownKey",
       "oscar-dump",
       {"--config", "@unknown.conf", "--model", "@model", "--text", "@text.txt", "--out",
        "@out/t.h5"},
       kUsage,
       "unknown.conf:1: unknown key 'tokenz'"},
      {"DumpConfigNamesAConfig",
       "oscar-dump",
       {"--config", "@nested.conf", "--model", "@model", "--text", "@text.txt", "--out",
        "@out/t.h5"},
       kUsage,
       "nested.conf:2: 'config' cannot stand in a configuration file"},
      {"DumpConfigListWithoutEnd",
       "oscar-dump",
       {"--config", "@open.conf", "--model", "@model", "--out", "@out/t.h5"},
       kUsage,
       "open.conf:2: the list that starts in line 1 has no end"},
      {"DumpUnknownDevice",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--window", "64", "--device", "tpu", "--out",
        "@out/t.h5"},
       kUsage,
       "tpu"},
      {"CalibrateUnknownTarget",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@out/e", "--k-target", "qq"},
       kUsage,
       "one of qqt, ktk"},
      {"CalibrateClipNotAPair",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@out/e", "--clip", "0.96"},
       kUsage,
       "--clip"},
      {"CalibrateClipAboveOne",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@out/e", "--clip", "1.2,0.9"},
       kUsage,
       "--clip"},
      {"CalibrateGridBackwards",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@out/e", "--clip-grid", "0.9:0.8:0.1"},
       kUsage,
       "clip grid"},
      {"CalibrateNoTraces",
       "oscar-calibrate",
       {"--model-name", "m", "--out", "@out/e"},
       kUsage,
       "--traces"},
      {"VerifyNothingGiven", "oscar-verify", {"--zoo", "@entry"}, kUsage, "--traces"},
      {"VerifyUnknownScheme",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--schemes", "quip"},
       kUsage,
       "quip"},
      {"VerifyModelWithoutText",
       "oscar-verify",
       {"--zoo", "@entry", "--model", "@model"},
       kUsage,
       "--text"},
      {"VerifyGroupTooWide",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--schemes", "naive", "--group-size", "100"},
       kUsage,
       "100"},
      {"VerifySinkIsNoNumber",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--sink", "few"},
       kUsage,
       "--sink: expected auto or a whole number"},
      {"VerifyModelOptionWithoutModel",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--model-schemes", "naive"},
       kUsage,
       "--model-schemes needs --model"},
      // Found before the traces are measured, or even opened.
      {"VerifyModelMissingBesideTraces",
       "oscar-verify",
       {"--traces", "@junk", "--model", "@missing", "--text", "@heldout.txt"},
       kFailed,
       "missing"},
      {"VerifyModelSchemeUnknownBesideTraces",
       "oscar-verify",
       {"--traces", "@junk", "--model", "@model", "--text", "@heldout.txt", "--model-schemes",
        "quip"},
       kUsage,
       "quip"},
      {"VerifyModelDeviceMissingBesideTraces",
       "oscar-verify",
       {"--traces", "@junk", "--model", "@model", "--text", "@heldout.txt", "--device", "cuda:99"},
       kFailed,
       "cuda:99"},
      {"VerifyUnknownDevice",
       "oscar-verify",
       {"--traces", "@heldout", "--device", "gpu"},
       kUsage,
       "unknown device"},
      {"BenchOnTheCpu", "oscar-verify", {"bench", "--device", "cpu"}, kUsage, "unknown device"},
      {"BenchBatchWord", "oscar-verify", {"bench", "--batch", "1,x"}, kUsage, "--batch"},
      {"BenchBatchZero",
       "oscar-verify",
       {"bench", "--batch", "0"},
       kUsage,
       "--batch: expected a whole number from 1 to 1024M, such as 100K, found '0'"},
      {"BenchWriteTokensNegative",
       "oscar-verify",
       {"bench", "--write-tokens", "-1"},
       kUsage,
       "--write-tokens: expected a whole number from 0 to 1024M, such as 100K, found '-1'"},
      {"BenchShapeTwice",
       "oscar-verify",
       {"bench", "--shape", "qwen3-4b,qwen3-4b"},
       kUsage,
       "names qwen3-4b twice"},
      {"BenchShapeAndHeads",
       "oscar-verify",
       {"bench", "--shape", "nonsense", "--q-heads", "32", "--kv-heads", "8", "--head-dim", "128"},
       kUsage,
       "--shape: expected no name beside --q-heads, --kv-heads and --head-dim, found 'nonsense'"},
      {"BenchDefaultShapeAndHeads",
       "oscar-verify",
       {"bench", "--shape", "qwen3-4b", "--q-heads", "32", "--kv-heads", "8", "--head-dim", "128"},
       kUsage,
       "found 'qwen3-4b'"},
      {"BenchSinkWithoutWindows",
       "oscar-verify",
       {"bench", "--sink", "5"},
       kUsage,
       "--sink needs --windows on"},
      {"BenchRecentWithoutWindows",
       "oscar-verify",
       {"bench", "--windows", "off", "--recent", "5"},
       kUsage,
       "--recent needs --windows on"},
      {"BenchUnknownShape", "oscar-verify", {"bench", "--shape", "gpt"}, kUsage, "gpt"},
      {"VerifyModelOnTwins",
       "oscar-verify",
       {"--model", "@model", "--text", "@text", "--device", "twin"},
       kUsage,
       "twin"},
      {"VerifyShapeOfNoKernel",
       "oscar-verify",
       {"--traces", "@heldout", "--schemes", "naive", "--sink", "4", "--recent", "16", "--device",
        "twin"},
       kFailed,
       "not supported by the CUDA kernels"},
      {"VerifyFlushZero",
       "oscar-verify",
       {"--traces", "@heldout", "--flush", "0"},
       kUsage,
       "--flush: expected auto or a whole number from 1"},
      {"VerifyClipWord",
       "oscar-verify",
       {"--traces", "@heldout", "--clip", "much"},
       kUsage,
       "--clip"},
      {"ZooNoCommand", "oscar-zoo", {}, kUsage, "no command"},
      {"ZooUnknownCommand", "oscar-zoo", {"polish", "@entry"}, kUsage, "polish"},
      {"ZooForce", "oscar-zoo", {"show", "@entry", "--force"}, kUsage, "--force"},
      {"ZooUnknownEngine", "oscar-zoo", {"env", "@entry", "--engine", "ollama"}, kUsage, "ollama"},
      // Files that are not there or not what they should be.
      {"DumpMissingModel",
       "oscar-dump",
       {"--model", "@missing", "--text", "@text.txt", "--out", "@out/t.h5"},
       kFailed,
       "missing"},
      {"DumpModelIsJunk",
       "oscar-dump",
       {"--model", "@junk", "--text", "@text.txt", "--out", "@out/t.h5"},
       kFailed,
       "junk"},
      {"DumpFolderWithoutConfig",
       "oscar-dump",
       {"--model", "@noconfig", "--text", "@text.txt", "--out", "@out/t.h5"},
       kFailed,
       "config.json"},
      {"DumpUnknownArchitecture",
       "oscar-dump",
       {"--model", "@gpt", "--text", "@text.txt", "--out", "@out/t.h5"},
       kFailed,
       "gpt2"},
      {"DumpMissingText",
       "oscar-dump",
       {"--model", "@model", "--text", "@missing.txt", "--out", "@out/t.h5"},
       kFailed,
       "missing.txt"},
      {"DumpEmptyText",
       "oscar-dump",
       {"--model", "@model", "--text", "@empty.txt", "--out", "@out/t.h5"},
       kFailed,
       "empty.txt"},
      {"DumpBadJsonLine",
       "oscar-dump",
       {"--model", "@model", "--text", "@bad.jsonl", "--out", "@out/t.h5"},
       kFailed,
       "bad.jsonl"},
      {"DumpBadAnswer",
       "oscar-dump",
       {"--model", "@model", "--text", "@bad.csv", "--template", "chatml", "--out", "@out/t.h5"},
       kFailed,
       "answer"},
      {"DumpUnknownColumns",
       "oscar-dump",
       {"--model", "@model", "--text", "@columns.csv", "--out", "@out/t.h5"},
       kFailed,
       "columns.csv"},
      {"DumpNotUtf8",
       "oscar-dump",
       {"--model", "@model", "--text", "@latin1.txt", "--out", "@out/t.h5"},
       kFailed,
       "UTF-8"},
      {"DumpIdsWithAWord",
       "oscar-dump",
       {"--model", "@model", "--token-ids", "@ids.txt", "--out", "@out/t.h5"},
       kFailed,
       "five"},
      {"DumpIdOutsideVocabulary",
       "oscar-dump",
       {"--model", "@model", "--token-ids", "@bigids.txt", "--out", "@out/t.h5"},
       kFailed,
       "99999999"},
      {"DumpImportMissing",
       "oscar-dump",
       {"--import", "@missing", "--q-heads", "4", "--kv-heads", "2", "--out", "@out/t.h5"},
       kFailed,
       "missing"},
      {"DumpImportEmptyFolder",
       "oscar-dump",
       {"--import", "@emptyfolder", "--q-heads", "4", "--kv-heads", "2", "--out", "@out/t.h5"},
       kFailed,
       "emptyfolder"},
      {"DumpImportMisnamedLayer",
       "oscar-dump",
       {"--import", "@misnamed", "--q-heads", "4", "--kv-heads", "2", "--out", "@out/t.h5"},
       kFailed,
       "misnamed/layer_00: expected the name layer_<number>"},
      {"DumpImportWrongHeads",
       "oscar-dump",
       {"--import", "@dump", "--q-heads", "8", "--kv-heads", "2", "--out", "@out/t.h5"},
       kFailed,
       "expected"},
      {"DumpOutputFolderMissing",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--tokens", "128", "--window", "64", "--out",
        "@out/no/such/t.h5"},
       kFailed,
       "no/such"},
      {"CalibrateMissingTrace",
       "oscar-calibrate",
       {"--traces", "@missing", "--model-name", "m", "--out", "@out/e"},
       kFailed,
       "missing"},
      {"CalibrateJunkTrace",
       "oscar-calibrate",
       {"--traces", "@junk", "--model-name", "m", "--out", "@out/e"},
       kFailed,
       "junk"},
      {"CalibrateTruncatedTrace",
       "oscar-calibrate",
       {"--traces", "@truncated.h5", "--model-name", "m", "--out", "@out/e"},
       kFailed,
       "truncated.h5"},
      {"CalibrateOtherModelsTraces",
       "oscar-calibrate",
       {"--traces", "@trace", "@othertrace", "--model-name", "m", "--out", "@out/e"},
       kFailed,
       "othertrace"},
      {"CalibrateWindowsTooWide",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@out/e"},
       kFailed,
       "recent 256"},
      {"CalibrateTokenFloor",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--sink", "4", "--recent", "16",
        "--min-tokens-per-dim", "1000", "--out", "@out/e"},
       kFailed,
       "layer 0"},
      {"CalibrateHeadDimOfNoUse",
       "oscar-calibrate",
       {"--traces", "@odd.h5", "--model-name", "m", "--sink", "4", "--recent", "16", "--out",
        "@out/e"},
       kFailed,
       "odd.h5: layer 0: head dim 6 of keys cannot be packed in 2 bits: expected a multiple of 4"},
      {"VerifyHeadDimOfNoUse",
       "oscar-verify",
       {"--traces", "@odd.h5", "--sink", "4", "--recent", "16"},
       kFailed,
       "odd.h5: layer 0: head dim 6 of keys cannot be packed in 2 bits: expected a multiple of 4"},
      {"CalibrateOutputExists",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--sink", "4", "--recent", "16", "--out",
        "@entry"},
       kFailed,
       "exists"},
      {"VerifyMissingEntry",
       "oscar-verify",
       {"--zoo", "@missing", "--traces", "@heldout"},
       kFailed,
       "missing"},
      {"VerifyHalfAPair",
       "oscar-verify",
       {"--zoo", "@halfpair", "--traces", "@heldout"},
       kFailed,
       "halfpair"},
      {"VerifySwappedPair",
       "oscar-verify",
       {"--zoo", "@swapped", "--traces", "@heldout"},
       kFailed,
       "swapped"},
      {"VerifyDamagedPair",
       "oscar-verify",
       {"--zoo", "@damaged", "--traces", "@heldout"},
       kFailed,
       "damaged"},
      {"VerifyOtherModel",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@othertrace", "--sink", "4", "--recent", "16"},
       kFailed,
       "made for a model"},
      {"VerifySeenText",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@trace", "--sink", "4", "--recent", "16"},
       kFailed,
       "calibration text"},
      {"VerifyNothingQuantised",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--recent", "256"},
       kFailed,
       "recent 256"},
      {"VerifyJunkGates",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--gates", "@gates.json"},
       kFailed,
       "gates.json"},
      {"VerifyGatesNoJson",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--gates", "@broken.json"},
       kFailed,
       "broken.json is not valid JSON: line 3, column 1: expected string literal, found '}'"},
      {"VerifyReportExists",
       "oscar-verify",
       {"--zoo", "@entry", "--traces", "@heldout", "--report", "@junk"},
       kFailed,
       "exists"},
      {"VerifyReportIsAFolder",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--force", "--report", "@entry"},
       kFailed,
       "entry is a folder"},
      {"VerifyReportFolderMissing",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--html", "@out/no/r.html"},
       kFailed,
       "folder does not exist"},
      {"VerifyReportAndPageInOneFile",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--html", "@out/r", "--report",
        "@out/r"},
       kUsage,
       "same file"},
      {"VerifyReportAndPageInOneFileBesideTheProgram",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--html", "r", "--report", "./r"},
       kUsage,
       "same file"},
      {"VerifyReportIsAPipe",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--force", "--report", "@pipe"},
       kFailed,
       "special file"},
      {"VerifyReportAndPageInOneFileByOtherNames",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--html", "@out/r", "--report",
        "@out/../out/r"},
       kUsage,
       "same file"},
      // The page could be written, the report cannot: its temporary name is too long.
      {"VerifyReportNameTooLong",
       "oscar-verify",
       {"--traces", "@heldout", "--sink", "4", "--recent", "16", "--schemes", "bf16", "--html",
        "@out/r.html", "--report", "@out/" + std::string(252, 'r')},
       kFailed,
       "cannot create"},
      // --force replaces results, never what the run reads.
      {"DumpOverItsText",
       "oscar-dump",
       {"--model", "@model", "--text", "@text.txt", "--out", "@text.txt", "--force"},
       kUsage,
       "text.txt is an input"},
      {"DumpOverItsConfiguration",
       "oscar-dump",
       {"--config", "@threads.conf", "--model", "@model", "--text", "@text.txt", "--out",
        "@threads.conf", "--force"},
       kUsage,
       "threads.conf is an input"},
      {"CalibrateOverItsTrace",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@trace", "--force"},
       kUsage,
       "trace is an input"},
      {"CalibrateOverTheFolderOfItsTrace",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@out/..", "--force"},
       kUsage,
       "trace, an input"},
      {"CalibrateOverAnotherFolder",
       "oscar-calibrate",
       {"--traces", "@trace", "--model-name", "m", "--out", "@gpt", "--force"},
       kFailed,
       "config.json is no part of a zoo entry"},
      {"VerifyReportOverItsTrace",
       "oscar-verify",
       {"--traces", "@heldout", "--report", "@out/../heldout", "--force"},
       kUsage,
       "heldout is an input"},
      {"VerifyHtmlOverItsGates",
       "oscar-verify",
       {"--traces", "@heldout", "--gates", "@gates.json", "--html", "@gates.json", "--force"},
       kUsage,
       "gates.json is an input"},
      {"VerifyReportOverAManifest",
       "oscar-verify",
       {"--traces", "@heldout", "--zoo", "@entry", "--report", "@entry/manifest.json", "--force"},
       kUsage,
       "is a file of"},
      {"BenchReportOverItsConfiguration",
       "oscar-verify",
       {"bench", "--config", "@threads.conf", "--report", "@threads.conf", "--force"},
       kUsage,
       "threads.conf is an input"},
      {"VerifyReportOverItsConfiguration",
       "oscar-verify",
       {"--config", "@threads.conf", "--traces", "@heldout", "--report", "@threads.conf",
        "--force"},
       kUsage,
       "threads.conf is an input"},
      {"ZooShowJunk", "oscar-zoo", {"show", "@junk"}, kFailed, "junk"},
      {"ZooShowEmptyFile", "oscar-zoo", {"show", "@empty"}, kFailed, "empty"},
      {"ZooShowMissing", "oscar-zoo", {"show", "@missing"}, kFailed, "missing"},
      {"ZooEnvHalfAPair",
       "oscar-zoo",
       {"env", "@halfpair", "--engine", "sglang"},
       kFailed,
       "halfpair"},
  };
  return cases;
}

class BadInput : public testing::TestWithParam<Case> {};

TEST_P(BadInput, IsRefusedWithOneClearErrorAndLeavesNothing) {
  const Case& c = GetParam();
  const Inputs& inputs = Inputs::Get();
  std::vector<std::string> arguments;
  for (const std::string& word : c.arguments) arguments.push_back(inputs.Resolve(word));
  const auto before = test::Snapshot(inputs.folder());
  const test::ProcessResult result =
      test::Run(c.program, arguments, test::FreshFolder("bad_input_run"));
  EXPECT_EQ(result.exit_code, c.exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  // A command with options of its own names itself too.
  EXPECT_THAT(result.err, testing::AnyOf(HasSubstr(std::string(c.program) + ": error: "),
                                         HasSubstr(std::string(c.program) + " bench: error: ")));
  EXPECT_THAT(result.err, HasSubstr(c.message));
  EXPECT_THAT(result.err, testing::Not(HasSubstr("internal")));
  EXPECT_EQ(test::Snapshot(inputs.folder()), before);
  EXPECT_TRUE(fs::is_empty(inputs.out()));
}

// A run without traces must tell under which settings it was made.
TEST(GoodInput, ARecordOfAModelsRunHoldsItsSettings) {
  const Inputs& inputs = Inputs::Get();
  const test::ProcessResult result =
      test::Run("oscar-verify",
                {"--model", inputs.Resolve("@model"), "--text", inputs.Resolve("@heldout.txt"),
                 "--tokens", "128", "--window", "64", "--sink", "3", "--recent", "17", "--zoo",
                 inputs.Resolve("@entry"), "--model-schemes", "bf16", "--json"},
                test::FreshFolder("good_input_run"));
  const Value record = Value::FromJson(result.out, "standard output");
  EXPECT_EQ(record.At("settings").At("sink"), Value(3)) << result.err;
  EXPECT_EQ(record.At("settings").At("recent"), Value(17));
  EXPECT_EQ(record.At("settings").At("context_tokens"), Value(64));
  EXPECT_EQ(record.At("inputs").At("zoo").AsArray().size(), 1U);
  const Value& run = record.At("volatile");
  EXPECT_GT(run.At("seconds").At("model").AsDouble(), 0);
  EXPECT_EQ(run.At("seconds").Find("traces"), nullptr);
  EXPECT_TRUE(run.At("threads").is_int());
  EXPECT_TRUE(run.At("processor").is_string());
}

// --quiet silences the note, not the fact.
TEST(GoodInput, AShortTextIsSaidInTheSummary) {
  const Inputs& inputs = Inputs::Get();
  const fs::path folder = test::FreshFolder("good_input_short");
  std::vector<std::string> arguments = {"--model",  inputs.Resolve("@model"),
                                        "--text",   inputs.Resolve("@heldout.txt"),
                                        "--tokens", "1000000000",
                                        "--window", "64",
                                        "--out",    (folder / "t.h5").string(),
                                        "--quiet",  "--dry-run"};
  const test::ProcessResult text = test::Run("oscar-dump", arguments, folder / "run");
  EXPECT_THAT(text.out, HasSubstr(", 1000000000 asked for")) << text.err;
  EXPECT_EQ(text.err, "");
  arguments.push_back("--json");
  const test::ProcessResult json = test::Run("oscar-dump", arguments, folder / "run");
  const Value record = Value::FromJson(json.out, "standard output");
  EXPECT_EQ(record.At("tokens_asked"), Value(1000000000));
  arguments[5] = "64";
  EXPECT_THAT(test::Run("oscar-dump", arguments, folder / "run").out,
              testing::Not(HasSubstr("asked for")));
}

// Bits of a scheme depend on the context; a table of traces and model has one.
TEST(GoodInput, AllRowsCountBitsAtTheContextOfTheTraces) {
  const Inputs& inputs = Inputs::Get();
  const test::ProcessResult result = test::Run(
      "oscar-verify",
      {"--traces", inputs.Resolve("@heldout"), "--model", inputs.Resolve("@model"), "--text",
       inputs.Resolve("@heldout.txt"), "--tokens", "96", "--window", "48", "--sink", "3",
       "--recent", "17", "--schemes", "naive", "--model-schemes", "hadamard", "--json"},
      test::FreshFolder("good_input_bits"));
  const Value record = Value::FromJson(result.out, "standard output");
  EXPECT_GT(record.At("settings").At("context_tokens").AsInt(), 48) << result.err;
  std::map<std::string, double> bits;
  for (const Value& scheme : record.At("schemes").AsArray()) {
    bits[scheme.At("name").AsString()] = scheme.At("bits_per_element").AsDouble();
  }
  EXPECT_EQ(bits.at("hadamard"), bits.at("naive"));  // only the model ran hadamard
}

INSTANTIATE_TEST_SUITE_P(Programs, BadInput, testing::ValuesIn(Cases()),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace oscar
