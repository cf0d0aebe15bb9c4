#include "oscar/core/json_scan.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace oscar {
namespace {

using nlohmann::json;

class Scanner : public nlohmann::json_sax<json> {
 public:
  explicit Scanner(int deepest) : deepest_(deepest) {}

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
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
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

  int deepest_, depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

JsonScan ScanJson(std::string_view text, int deepest) {
  Scanner scanner(deepest);
  json::sax_parse(text, &scanner);
  return scanner.scan;
}

}  // namespace oscar
