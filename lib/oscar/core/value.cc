#include "oscar/core/value.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "oscar/core/error.h"
#include "oscar/core/json_scan.h"

namespace oscar {
namespace {

using nlohmann::json;

const char* TypeName(const Value& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "boolean";
  if (value.is_int()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_string()) return "string";
  return value.is_array() ? "array" : "object";
}

[[noreturn]] void WrongType(const char* expected, const Value& found) {
  throw Error(ErrorCode::kFormat, fmt::format("expected {}, found {}", expected, TypeName(found)));
}

json Encode(const Value& value) {
  if (value.is_null()) return nullptr;
  if (value.is_bool()) return value.AsBool();
  if (value.is_int()) return value.AsInt();
  if (value.is_number()) {
    const double number = value.AsDouble();
    return std::isfinite(number) ? json(number) : json(nullptr);
  }
  if (value.is_string()) return value.AsString();
  if (value.is_array()) {
    json out = json::array();
    for (const Value& item : value.AsArray()) out.push_back(Encode(item));
    return out;
  }
  json out = json::object();
  for (const auto& [key, item] : value.AsObject()) out[key] = Encode(item);
  return out;
}

// Deeper than any honest file; what works on values recurses.
constexpr int kDeepestNesting = 256;

json Parse(std::string_view text, const std::string& where) {
  const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::kFormat, where + why); };
  const JsonScan scan = ScanJson(text, kDeepestNesting);
  if (scan.too_deep) refuse(": nested too deeply");
  if (scan.fault) refuse(" is not valid JSON: " + *scan.fault);
  if (scan.repeated) refuse(fmt::format(": key '{}' comes twice in one object", *scan.repeated));
  return json::parse(text);
}

Value Decode(const json& node) {
  switch (node.type()) {
    case json::value_t::boolean:
      return node.get<bool>();
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return node.get<int64_t>();
    case json::value_t::number_float:
      return node.get<double>();
    case json::value_t::string:
      return node.get<std::string>();
    case json::value_t::array: {
      Value::Array out;
      for (const json& item : node) out.push_back(Decode(item));
      return out;
    }
    case json::value_t::object: {
      Value::Object out;
      for (const auto& item : node.items()) out[item.key()] = Decode(item.value());
      return out;
    }
    default:
      return nullptr;
  }
}

void Differences(const Value& a, const Value& b, const std::string& path, size_t limit,
                 std::vector<std::string>& out) {
  if (a == b || out.size() >= limit) return;
  if (!a.is_object() || !b.is_object()) {
    out.push_back(fmt::format("{}: {} != {}", path, a.ToJson(), b.ToJson()));
    return;
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const auto& [key, item] : a.AsObject()) {
    const Value* other = b.Find(key);
    Differences(item, other != nullptr ? *other : Value(), prefix + key, limit, out);
  }
  for (const auto& [key, item] : b.AsObject()) {
    if (a.Find(key) == nullptr) Differences(Value(), item, prefix + key, limit, out);
  }
}

}  // namespace

bool Value::AsBool() const {
  if (!is_bool()) WrongType("boolean", *this);
  return std::get<bool>(data_);
}

int64_t Value::AsInt() const {
  if (!is_int()) WrongType("integer", *this);
  return std::get<int64_t>(data_);
}

double Value::AsDouble() const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(data_));
  if (!is_number()) WrongType("number", *this);
  return std::get<double>(data_);
}

const std::string& Value::AsString() const {
  if (!is_string()) WrongType("string", *this);
  return std::get<std::string>(data_);
}

const Value::Array& Value::AsArray() const {
  if (!is_array()) WrongType("array", *this);
  return std::get<Array>(data_);
}

const Value::Object& Value::AsObject() const {
  if (!is_object()) WrongType("object", *this);
  return std::get<Object>(data_);
}

Value::Array& Value::MutableArray() {
  if (is_null()) data_ = Array();
  if (!is_array()) WrongType("array", *this);
  return std::get<Array>(data_);
}

Value::Object& Value::MutableObject() {
  if (is_null()) data_ = Object();
  if (!is_object()) WrongType("object", *this);
  return std::get<Object>(data_);
}

const Value& Value::At(const std::string& key) const {
  const Value* found = Find(key);
  if (found == nullptr) throw Error(ErrorCode::kFormat, fmt::format("missing key '{}'", key));
  return *found;
}

const Value* Value::Find(const std::string& key) const {
  if (!is_object()) return nullptr;
  const auto& object = std::get<Object>(data_);
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &it->second;
}

std::string Value::ToJson(int indent) const {
  return Encode(*this).dump(indent, ' ', false, json::error_handler_t::replace);
}

Value Value::FromJson(std::string_view text, const std::string& where) {
  return Decode(Parse(text, where));
}

std::vector<std::string> DescribeDifferences(const Value& a, const Value& b, size_t limit) {
  std::vector<std::string> out;
  Differences(a, b, "", limit, out);
  return out;
}

}  // namespace oscar
