// Typed access to a flat configuration that remembers which fields were asked for, so that the
// rest can be refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "oscar/core/value.h"

namespace oscar {

// Fields whose value is null count as absent. Keeps a reference to the value.
class ConfigReader {
 public:
  // `source` names the file in messages; `prefix` ("llama.") is put before every field name.
  ConfigReader(const Value& object, std::string source, std::string prefix = "");

  // Each, but Has (which sees null as well), marks the field as known. Throws Error(kFormat) naming
  // source and field for another type.
  const Value* Find(const std::string& field);
  bool Has(const std::string& field) const { return object_.Find(prefix_ + field) != nullptr; }
  std::optional<int64_t> Int(const std::string& field);
  std::optional<double> Number(const std::string& field);
  std::optional<bool> Bool(const std::string& field);
  std::optional<std::string> Text(const std::string& field);

  // An integer in [1, largest]. Throws Error(kFormat) when it is absent or outside.
  int64_t Size(const std::string& field, int64_t largest);
  int64_t SizeOr(const std::string& field, int64_t fallback, int64_t largest);
  // A finite number above zero.
  double PositiveOr(const std::string& field, double fallback);

  // Throws Error(kUnsupported) naming the first field that nobody asked for, that is not null and
  // neither in `harmless` nor starts with "_". `hint` says what the user can do.
  void RefuseUnknown(std::span<const std::string_view> harmless, const std::string& hint) const;
  // Throws Error(kUnsupported) or (kFormat) about a field, with the value found.
  [[noreturn]] void Unsupported(const std::string& field, const std::string& why) const;
  [[noreturn]] void Wrong(const std::string& field, const std::string& expected) const;

  const std::string& source() const { return source_; }

 private:
  const Value& object_;
  std::string source_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace oscar
