#include "oscar/weights/config_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

std::string Shown(const Value* value) {
  if (value == nullptr) return "nothing";
  std::string text = value->ToJson();
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const Value& object, std::string source, std::string prefix)
    : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    throw Error(ErrorCode::kFormat, source_ + " does not hold a JSON object");
  }
}

const Value* ConfigReader::Find(const std::string& field) {
  known_.insert(prefix_ + field);
  const Value* value = object_.Find(prefix_ + field);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<int64_t> ConfigReader::Int(const std::string& field) {
  const Value* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_int()) return value->AsInt();
  // Some writers give whole numbers a decimal point.
  if (value->is_number() && value->AsDouble() == std::floor(value->AsDouble()) &&
      std::abs(value->AsDouble()) < 0x1p53) {
    return static_cast<int64_t>(value->AsDouble());
  }
  Wrong(field, "an integer");
}

std::optional<double> ConfigReader::Number(const std::string& field) {
  const Value* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->AsDouble())) Wrong(field, "a finite number");
  return value->AsDouble();
}

std::optional<bool> ConfigReader::Bool(const std::string& field) {
  const Value* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) Wrong(field, "true or false");
  return value->AsBool();
}

std::optional<std::string> ConfigReader::Text(const std::string& field) {
  const Value* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Wrong(field, "a text");
  return value->AsString();
}

int64_t ConfigReader::Size(const std::string& field, int64_t largest) {
  const std::optional<int64_t> value = Int(field);
  if (!value || *value < 1 || *value > largest) {
    Wrong(field, Message("an integer from 1 to ", largest));
  }
  return *value;
}

int64_t ConfigReader::SizeOr(const std::string& field, int64_t fallback, int64_t largest) {
  return Find(field) == nullptr ? fallback : Size(field, largest);
}

double ConfigReader::PositiveOr(const std::string& field, double fallback) {
  const double value = Number(field).value_or(fallback);
  if (!(value > 0)) Wrong(field, "a number above zero");
  return value;
}

void ConfigReader::RefuseUnknown(std::span<const std::string_view> harmless,
                                 const std::string& hint) const {
  for (const auto& [key, value] : object_.AsObject()) {
    if (!key.starts_with(prefix_) || value.is_null() || known_.contains(key)) continue;
    const std::string_view field = std::string_view(key).substr(prefix_.size());
    if (field.starts_with("_") || std::ranges::find(harmless, field) != harmless.end()) continue;
    throw Error(ErrorCode::kUnsupported,
                Message(source_, ": unknown field ", Quoted(key), " with value ", Shown(&value),
                        ", which may change the computation"),
                hint);
  }
}

void ConfigReader::Unsupported(const std::string& field, const std::string& why) const {
  throw Error(ErrorCode::kUnsupported, Message(source_, ": ", Quoted(prefix_ + field), " is ",
                                               Shown(object_.Find(prefix_ + field)), ": ", why));
}

void ConfigReader::Wrong(const std::string& field, const std::string& expected) const {
  throw Error(ErrorCode::kFormat,
              Message(source_, ": field ", Quoted(prefix_ + field), ": expected ", expected,
                      ", found ", Shown(object_.Find(prefix_ + field))));
}

}  // namespace oscar
