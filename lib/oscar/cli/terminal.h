// The terminal as a sink of progress and messages.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/progress.h"

namespace oscar::cli {

struct TerminalOptions {
  bool bar = false;      // draw a bar, at most ten times a second
  bool lines = false;    // without a bar: one plain line every 30 seconds
  bool messages = true;  // print Info
  bool color = false;
};

// Writes to standard error. Warnings are kept for a summary.
class TerminalProgress final : public Progress {
 public:
  TerminalProgress(std::string program, const TerminalOptions& options);
  void Begin(std::string_view task, int64_t total, std::string_view unit) override;
  void Advance(int64_t units) override;
  void Info(std::string_view message) override;
  void Warn(std::string_view message) override;
  void End() override;

  // Repeats the number of warnings when there were more than one.
  void PrintSummary();

 private:
  using Clock = std::chrono::steady_clock;
  void Draw(bool last);
  void Clear();
  std::string Eta() const;

  std::string program_;
  TerminalOptions options_;
  std::string task_, unit_;
  int64_t total_ = 0, done_ = 0;
  Clock::time_point start_, last_draw_;
  bool drawn_ = false;
  std::vector<std::string> warnings_;
};

// "3.2 s", "4 min 10 s", "2 h 5 min".
std::string DurationText(double seconds);

}  // namespace oscar::cli
