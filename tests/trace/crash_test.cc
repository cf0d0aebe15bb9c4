// A run killed at any moment continues to the very bytes of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "support/golden.h"
#include "trace/fake_trace.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FakeHeader;
using test::FakeLayer;
using test::FreshFolder;
using test::Thrown;
using ::testing::HasSubstr;

// What a producer does: layers in order, the state of each boundary behind its layer. The state
// here is the number of the next layer.
void Produce(const fs::path& file, const TraceHeader& header, int stop_before) {
  TraceWriter writer(file, header, true, false);
  if (writer.finished()) {
    writer.Finish();
    return;
  }
  int next = 0;
  if (const auto state = writer.state_file()) next = std::stoi(ReadTextFile(*state));
  for (int layer = 0; layer < next; ++layer) {
    if (!writer.HasLayer(layer)) throw Error(ErrorCode::kData, "the state is ahead of the layers");
  }
  for (int layer = next; layer < static_cast<int>(header.layers.size()); ++layer) {
    if (layer == stop_before) return;
    const LayerCapture capture = FakeLayer(layer, header);
    if (!writer.HasLayer(layer)) writer.WriteLayer(capture);
    writer.WriteState([&](const fs::path& state) { std::ofstream(state) << layer + 1; });
  }
  if (stop_before == static_cast<int>(header.layers.size())) return;
  writer.Finish();
}

TEST(Crash, StoppingBeforeAnyLayerAndResumingGivesEqualBytes) {
  const fs::path folder = FreshFolder("crash_stop");
  const TraceHeader header = FakeHeader({300, 40}, 1, {0, 1, 2});
  Produce(folder / "whole.trace.h5", header, -1);
  const std::string whole = ReadTextFile(folder / "whole.trace.h5");
  for (int stop = 0; stop <= 3; ++stop) {
    const fs::path file = folder / ("stopped_" + std::to_string(stop) + ".trace.h5");
    Produce(file, header, stop);
    EXPECT_FALSE(fs::exists(file));
    // Half-written leftovers of killed writers are swept away.
    std::ofstream(file.string() + ".part/layer_2.h5.tmp-1") << "half";
    std::ofstream(file.string() + ".part/state.bin.tmp-1") << "9";
    Produce(file, header, -1);
    EXPECT_TRUE(ReadTextFile(file) == whole) << stop;
    EXPECT_FALSE(fs::exists(file.string() + ".part"));
  }
}

TEST(Crash, ResumingAfterTheEndChangesNothing) {
  const fs::path file = FreshFolder("crash_after_end") / "a.trace.h5";
  const TraceHeader header = FakeHeader({30}, 1, {0, 1});
  Produce(file, header, -1);
  const std::string whole = ReadTextFile(file);
  Produce(file, header, -1);
  // Killed between the last rename and the removal of the folder, complete or half removed.
  fs::create_directory(file.string() + ".part");
  std::ofstream(file.string() + ".part/layer_0.h5") << "anything";
  Produce(file, header, -1);
  EXPECT_TRUE(ReadTextFile(file) == whole);
  EXPECT_FALSE(fs::exists(file.string() + ".part"));
  const Error error = Thrown([&] { TraceWriter(file, FakeHeader({31}, 1, {0, 1}), true, false); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("sequence 0: other tokens"));
}

TEST(Crash, AFolderWithoutHeaderIsAFreshStart) {
  const fs::path file = FreshFolder("crash_no_header") / "a.trace.h5";
  const TraceHeader header = FakeHeader({30}, 1, {0, 1});
  fs::create_directory(file.string() + ".part");
  std::ofstream(file.string() + ".part/layer_0.h5") << "left by a half removed folder";
  TraceWriter writer(file, header, false, false);
  EXPECT_FALSE(writer.HasLayer(0));
  EXPECT_FALSE(fs::exists(writer.part_folder() / "layer_0.h5"));
}

TEST(Crash, SomebodyElsesFolderIsNotCleared) {
  const fs::path file = FreshFolder("crash_foreign") / "a.trace.h5";
  const TraceHeader header = FakeHeader({30}, 1, {0, 1});
  fs::create_directory(file.string() + ".part");
  std::ofstream(file.string() + ".part/thesis.txt") << "years of work";
  for (const bool force : {false, true}) {
    const Error error = Thrown([&] { TraceWriter(file, header, false, force); });
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("holds thesis.txt"));
  }
  EXPECT_EQ(ReadTextFile(file.string() + ".part/thesis.txt"), "years of work");
}

TEST(Crash, DamagedLayerFilesAreNamedOnResume) {
  const fs::path file = FreshFolder("crash_damage") / "a.trace.h5";
  const TraceHeader header = FakeHeader({30}, 1, {0, 1});
  Produce(file, header, 1);
  fs::resize_file(file.string() + ".part/layer_0.h5", 1000);
  const Error error = Thrown([&] { TraceWriter(file, header, true, false); });
  EXPECT_EQ(error.code(), ErrorCode::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("layer_0.h5"));
}

TEST(Crash, KilledAtRandomMomentsItStillGivesEqualBytes) {
  const fs::path folder = FreshFolder("crash_kill");
  const TraceHeader header = FakeHeader({700, 40}, 2, {0, 1, 2, 3, 4});
  const auto begin = std::chrono::steady_clock::now();
  Produce(folder / "whole.trace.h5", header, -1);
  const auto whole_us = std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::steady_clock::now() - begin)
                            .count();
  const std::string whole = ReadTextFile(folder / "whole.trace.h5");
  const fs::path file = folder / "killed.trace.h5";
  Random random(DeriveSeed(7, "kill"));
  int kills = 0;
  for (int round = 0; round < 12 || (kills <= 12 && round < 100); ++round) {
    for (int attempt = 0;; ++attempt) {
      ASSERT_LT(attempt, 60);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        try {
          Produce(file, header, -1);
          ::_exit(0);
        } catch (...) {
          ::_exit(1);
        }
      }
      // Anywhere in a run, and a little beyond so that some attempts finish.
      const auto delay = static_cast<int64_t>(
          random.Below(static_cast<uint64_t>(whole_us) * (attempt < 4 ? 1 : 3) + 1));
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      ::kill(child, SIGKILL);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      if (WIFSIGNALED(status)) {
        ++kills;
        continue;
      }
      ASSERT_EQ(WEXITSTATUS(status), 0) << "round " << round << ", attempt " << attempt;
      break;
    }
    ASSERT_TRUE(ReadTextFile(file) == whole) << round;
    ASSERT_FALSE(fs::exists(file.string() + ".part"));
    fs::remove(file);
  }
  EXPECT_GT(kills, 12);
}

}  // namespace
}  // namespace oscar
