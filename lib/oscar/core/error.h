// Failures. Bad input, files, sizes or devices throw Error; a bug of ours ends in CheckFailure.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace oscar {

// What kind of thing went wrong. The command line maps kUsage to exit code 2, kInterrupted to 130
// and every other code to 3.
enum class ErrorCode {
  kUsage,        // the caller asked for something that makes no sense; nothing was started
  kIo,           // a file or folder cannot be opened, read, written or renamed
  kFormat,       // a file is readable but not what it claims to be (magic, truncation, shapes)
  kUnsupported,  // valid input that this build or this toolkit does not handle
  kMismatch,     // two inputs do not belong together (other model, swapped K and V, overlap)
  kNumeric,      // NaN or infinity, a failed factorisation, a residual above its bound
  kData,         // too little or degenerate data (too few tokens, zero observations)
  kMemory,       // not enough memory
  kDevice,       // no such device, or the device failed
  kInterrupted,  // stopped on request; resumable output is left where that is promised
};

// Name of the code in lower case with underscores, for example "bad_format". Used in JSON errors.
std::string_view ErrorCodeName(ErrorCode code);

// The one exception type of the toolkit. `message` says what, where, expected and found, on one
// line; `hint` says what to do about it and may be empty.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string hint = "")
      : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}

  ErrorCode code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  ErrorCode code_;
  std::string hint_;
};

// A broken invariant of the toolkit itself: never the user's fault.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void FailCheck(const char* expression, const char* file, int line);

}  // namespace oscar

// Always-on check of our own invariants; throws CheckFailure.
#define OSCAR_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::oscar::FailCheck(#condition, __FILE__, __LINE__))

// Check for hot loops, active in builds without NDEBUG only.
#ifdef NDEBUG
#define OSCAR_DCHECK(condition) static_cast<void>(0)
#else
#define OSCAR_DCHECK(condition) OSCAR_CHECK(condition)
#endif
