// A manifest value: the JSON data model with sorted keys, so that equal content gives equal bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace oscar {

class Value {
 public:
  using Array = std::vector<Value>;
  using Object = std::map<std::string, Value>;

  Value() = default;
  Value(std::nullptr_t) {}                               // NOLINT(google-explicit-constructor)
  Value(bool x) : data_(x) {}                            // NOLINT(google-explicit-constructor)
  Value(int x) : data_(static_cast<int64_t>(x)) {}       // NOLINT(google-explicit-constructor)
  Value(int64_t x) : data_(x) {}                         // NOLINT(google-explicit-constructor)
  Value(uint64_t x) : data_(static_cast<int64_t>(x)) {}  // NOLINT(google-explicit-constructor)
  Value(double x) : data_(x) {}                          // NOLINT(google-explicit-constructor)
  Value(const char* x) : data_(std::string(x)) {}        // NOLINT(google-explicit-constructor)
  Value(std::string_view x) : data_(std::string(x)) {}   // NOLINT(google-explicit-constructor)
  Value(std::string x) : data_(std::move(x)) {}          // NOLINT(google-explicit-constructor)
  Value(Array x) : data_(std::move(x)) {}                // NOLINT(google-explicit-constructor)
  Value(Object x) : data_(std::move(x)) {}               // NOLINT(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<Array>(data_); }
  bool is_object() const { return std::holds_alternative<Object>(data_); }

  // Typed access. Throws Error(kFormat) naming the expected and the found type.
  bool AsBool() const;
  int64_t AsInt() const;
  double AsDouble() const;  // accepts integers
  const std::string& AsString() const;
  const Array& AsArray() const;
  const Object& AsObject() const;
  Array& MutableArray();    // a null value becomes an empty array
  Object& MutableObject();  // a null value becomes an empty object

  // Member of an object; inserts null when absent. A null value becomes an object.
  Value& operator[](const std::string& key) { return MutableObject()[key]; }
  // Member of an object. Throws Error(kFormat) naming the key when it is absent.
  const Value& At(const std::string& key) const;
  // Member of an object, or nullptr when absent or when this is no object.
  const Value* Find(const std::string& key) const;

  friend bool operator==(const Value&, const Value&) = default;

  // JSON text with sorted keys and shortest round-trip numbers; non-finite numbers become null.
  // indent < 0: one line, no spaces.
  std::string ToJson(int indent = -1) const;
  // Throws Error(kFormat) with `where` (a file name, say) and the position of the fault, or the key
  // that comes twice in one object.
  static Value FromJson(std::string_view text, const std::string& where);

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> data_;
};

// Human-readable list of the paths at which two values differ, for example
// "options.window: 2048 != 1024"; at most `limit` entries.
std::vector<std::string> DescribeDifferences(const Value& a, const Value& b, size_t limit);

}  // namespace oscar
