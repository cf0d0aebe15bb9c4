#include "oscar/core/json_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "oscar/core/printable.h"

namespace oscar {
namespace {

using nlohmann::json;

// Of the last of the first `read` bytes; one beyond the text where its end was read.
std::string Position(std::string_view text, size_t read) {
  const std::string_view before = text.substr(0, read == 0 ? 0 : read - 1);
  const size_t line = before.rfind('\n');
  return fmt::format("line {}, column {}", 1 + std::ranges::count(before, '\n'),
                     before.size() + 1 - (line == std::string_view::npos ? 0 : line + 1));
}

// The parser says "[json.exception.parse_error.101] parse error at line 1, column 7: syntax error
// while parsing value - unexpected '}'; expected ...", or "invalid literal; last read: ..." after
// the dash, without what it expected where that is any value; of a number too large nothing but
// that.
std::string Reason(std::string_view what) {
  constexpr std::string_view kExpected = "; expected ", kUnexpected = "unexpected ";
  if (const size_t end = what.find("] "); end != std::string_view::npos)
    what.remove_prefix(end + 2);
  const size_t dash = what.find(" - ");
  if (!what.starts_with("parse error") || dash == std::string_view::npos) return Printable(what);
  what.remove_prefix(dash + 3);
  const size_t cut = what.rfind(kExpected);
  const bool any = cut == std::string_view::npos;
  std::string_view found = what.substr(0, cut);
  if (found.starts_with(kUnexpected)) found.remove_prefix(kUnexpected.size());
  return fmt::format("expected {}, found {}",
                     any ? "a value" : Printable(what.substr(cut + kExpected.size())),
                     Printable(found));
}

class Scanner : public nlohmann::json_sax<json> {
 public:
  Scanner(std::string_view text, int deepest) : text_(text), deepest_(deepest) {}

  JsonScan scan;

  bool start_object(size_t /*members*/) override {
    keys_.emplace_back();
    return Open();
  }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      if (!scan.repeated) scan.repeated = key;
      if (depth_ == 1 && !scan.repeated_at_top) scan.repeated_at_top = key;
    }
    return Here();
  }
  bool end_object() override {
    keys_.pop_back();
    return Close();
  }
  bool start_array(size_t /*items*/) override { return Open(); }
  bool end_array() override { return Close(); }
  bool null() override { return Here(); }
  bool boolean(bool /*x*/) override { return Here(); }
  bool number_integer(number_integer_t /*x*/) override { return Here(); }
  bool number_unsigned(number_unsigned_t /*x*/) override { return Here(); }
  bool number_float(number_float_t /*x*/, const string_t& /*text*/) override { return Here(); }
  bool string(string_t& /*x*/) override { return Here(); }
  bool binary(binary_t& /*x*/) override { return Here(); }
  bool parse_error(size_t read, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    scan.fault = Position(text_, read) + ": " + Reason(error.what());
    return false;
  }

 private:
  // Whether to go on.
  bool Here() {
    scan.too_deep = depth_ > deepest_;
    return !scan.too_deep;
  }
  bool Open() {
    const bool on = Here();
    ++depth_;
    return on;
  }
  bool Close() {
    --depth_;
    return true;
  }

  std::string_view text_;
  int deepest_, depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

JsonScan ScanJson(std::string_view text, int deepest) {
  Scanner scanner(text, deepest);
  json::sax_parse(text, &scanner);
  return scanner.scan;
}

}  // namespace oscar
