// How long work tells about itself and is asked to stop: interfaces only, the terminal is
// elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// Receives progress of one task at a time. Calls come from one thread.
class Progress {
 public:
  virtual ~Progress() = default;
  // A task of `total` units (for example 30 "layers") starts.
  virtual void Begin(std::string_view task, int64_t total, std::string_view unit) = 0;
  virtual void Advance(int64_t units) = 0;
  // A message of interest to a watching user.
  virtual void Info(std::string_view message) = 0;
  // Something is odd but the work goes on. Warnings are counted and repeated at the end.
  virtual void Warn(std::string_view message) = 0;
  virtual void End() = 0;
};

// Ignores everything.
class NullProgress final : public Progress {
 public:
  void Begin(std::string_view, int64_t, std::string_view) override {}
  void Advance(int64_t) override {}
  void Info(std::string_view) override {}
  void Warn(std::string_view) override {}
  void End() override {}
};

// Set from a signal handler, polled by long loops.
class CancelToken {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // Throws Error(kInterrupted) with `what_is_left` (for example "resume with --resume") as hint.
  void ThrowIfCancelled(const std::string& what_is_left) const;

 private:
  std::atomic<bool> cancelled_{false};
};

// What every use case is handed by its caller: sinks and limits, never globals.
struct RunContext {
  Progress* progress = nullptr;  // never null once handed to a use case
  CancelToken* cancel = nullptr;
  int threads = 1;
};

}  // namespace oscar
