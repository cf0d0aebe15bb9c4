#include "oscar/cli/terminal.h"

#include <fmt/format.h>

#include <cstdio>

#include "oscar/cli/messages.h"

namespace oscar::cli {
namespace {

constexpr int kBarWidth = 24;

}  // namespace

std::string DurationText(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

TerminalProgress::TerminalProgress(std::string program, const TerminalOptions& options)
    : program_(std::move(program)), options_(options) {}

void TerminalProgress::Begin(std::string_view task, int64_t total, std::string_view unit) {
  task_ = task;
  unit_ = unit;
  total_ = total;
  done_ = 0;
  start_ = last_draw_ = Clock::now();
  Draw(false);
}

void TerminalProgress::Advance(int64_t units) {
  done_ += units;
  const std::chrono::duration<double> since = Clock::now() - last_draw_;
  if (options_.bar && since.count() >= 0.1) Draw(false);
  if (!options_.bar && options_.lines && since.count() >= 30) Draw(false);
}

std::string TerminalProgress::Eta() const {
  if (done_ <= 0 || done_ >= total_) return "";
  const std::chrono::duration<double> spent = Clock::now() - start_;
  return ", " +
         DurationText(spent.count() / static_cast<double>(done_) *
                      static_cast<double>(total_ - done_)) +
         " left";
}

void TerminalProgress::Draw(bool last) {
  last_draw_ = Clock::now();
  if (options_.bar) {
    const auto filled = static_cast<size_t>(total_ > 0 ? kBarWidth * done_ / total_ : kBarWidth);
    Say("\r\033[K{} [{:<{}}] {}/{} {}{}", task_, std::string(filled, '#'), kBarWidth, done_, total_,
        unit_, Eta());
    std::fflush(stderr);
    drawn_ = true;
  } else if (options_.lines && (last || done_ > 0)) {
    Say("{}: {}: {}/{} {}{}\n", program_, task_, done_, total_, unit_, Eta());
  }
}

void TerminalProgress::Clear() {
  if (drawn_) Say("\r\033[K");
  drawn_ = false;
}

void TerminalProgress::Info(std::string_view message) {
  if (!options_.messages) return;
  Clear();
  Say("{}: {}\n", program_, message);
}

void TerminalProgress::Warn(std::string_view message) {
  warnings_.emplace_back(message);
  if (!options_.messages) return;
  Clear();
  Say("{}: {}warning:{} {}\n", program_, options_.color ? "\033[33m" : "",
      options_.color ? "\033[0m" : "", message);
}

void TerminalProgress::End() {
  if (options_.bar) Clear();
  if (!options_.messages || task_.empty()) return;
  const std::chrono::duration<double> spent = Clock::now() - start_;
  Say("{}: {}: {} {} in {}\n", program_, task_, done_, unit_, DurationText(spent.count()));
}

void TerminalProgress::PrintSummary() {
  Clear();
  if (warnings_.size() < 2 || !options_.messages) return;
  Say("{}: {} warnings:\n", program_, warnings_.size());
  for (const std::string& warning : warnings_) Say("  {}\n", warning);
}

}  // namespace oscar::cli
