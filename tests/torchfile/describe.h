// Compares what was read with the description that tests/golden/torchfile/describe.py prints.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/value.h"
#include "oscar/torchfile/torchfile.h"

namespace oscar::test {

template <typename T>
std::string CompareCounts(const std::vector<int64_t>& found, const T& expected,
                          const std::string& where) {
  if (found.size() != expected.size()) return where + ": other rank";
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != expected[i].AsInt()) return where + ": differs";
  }
  return "";
}

inline std::string CompareTensor(const TorchTensor& found, const Value& expected,
                                 const std::string& where) {
  if (DTypeName(found.dtype) != expected.At("dtype").AsString()) return where + ": other dtype";
  std::string fault = CompareCounts(found.shape, expected.At("shape").AsArray(), where + " shape");
  if (!fault.empty()) return fault;
  fault = CompareCounts(found.strides, expected.At("stride").AsArray(), where + " stride");
  if (!fault.empty()) return fault;
  if (found.contiguous() != expected.At("contiguous").AsBool()) return where + ": contiguity";
  const std::vector<double> values = found.ToDoubles();
  const std::vector<float> floats = found.ToFloats();
  const Value::Array& wanted = expected.At("values").AsArray();
  if (values.size() != wanted.size()) return where + ": other number of elements";
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != wanted[i].AsDouble()) return fmt::format("{}[{}]: {}", where, i, values[i]);
    if (floats[i] != static_cast<float>(values[i])) return fmt::format("{}[{}] float", where, i);
  }
  return "";
}

// Empty when equal, otherwise the path of the first difference.
inline std::string Compare(const TorchValue& found, const Value& expected,
                           const std::string& where) {
  if (const Value* tensor = expected.Find("tensor")) {
    const auto* data = std::get_if<TorchTensor>(&found.data);
    return data == nullptr ? where + ": no tensor" : CompareTensor(*data, *tensor, where);
  }
  if (const Value* items = expected.Find("list")) {
    const auto* list = std::get_if<std::shared_ptr<TorchValue::List>>(&found.data);
    if (list == nullptr || (*list)->size() != items->AsArray().size()) return where + ": list";
    for (size_t i = 0; i < (*list)->size(); ++i) {
      std::string fault =
          Compare((**list)[i], items->AsArray()[i], fmt::format("{}[{}]", where, i));
      if (!fault.empty()) return fault;
    }
    return "";
  }
  if (const Value* items = expected.Find("dict")) {
    const auto* dict = std::get_if<std::shared_ptr<TorchValue::Dict>>(&found.data);
    if (dict == nullptr || (*dict)->size() != items->AsArray().size()) return where + ": dict";
    for (size_t i = 0; i < (*dict)->size(); ++i) {
      const Value::Array& pair = items->AsArray()[i].AsArray();
      const std::string name = where + "." + pair[0].ToJson();
      std::string fault = Compare((**dict)[i].first, pair[0], name + " key");
      if (fault.empty()) fault = Compare((**dict)[i].second, pair[1], name);
      if (!fault.empty()) return fault;
    }
    return "";
  }
  bool same = false;
  if (const Value* real = expected.Find("float")) {
    const auto* x = std::get_if<double>(&found.data);
    same = x != nullptr && *x == std::strtod(real->AsString().c_str(), nullptr);
  } else if (expected.is_string()) {
    const auto* x = std::get_if<std::string>(&found.data);
    same = x != nullptr && *x == expected.AsString();
  } else if (expected.is_bool()) {
    const auto* x = std::get_if<bool>(&found.data);
    same = x != nullptr && *x == expected.AsBool();
  } else if (expected.is_int()) {
    const auto* x = std::get_if<int64_t>(&found.data);
    same = x != nullptr && *x == expected.AsInt();
  } else if (expected.is_null()) {
    same = std::holds_alternative<std::monostate>(found.data);
  }
  return same ? "" : where + ": expected " + expected.ToJson();
}

// The same value to be written. Tensors that are not contiguous are not supported.
inline TorchOut ToOut(const TorchValue& value) {
  return std::visit(
      [](const auto& x) -> TorchOut {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, TorchTensor>) {
          const size_t bytes = static_cast<size_t>(x.elements()) * DTypeSize(x.dtype);
          return {TorchTensorData{x.dtype, x.shape, {x.ContiguousData(), bytes}}};
        } else if constexpr (std::is_same_v<T, std::shared_ptr<TorchValue::List>>) {
          auto list = std::make_shared<TorchOut::List>();
          for (const TorchValue& item : *x) list->push_back(ToOut(item));
          return {list};
        } else if constexpr (std::is_same_v<T, std::shared_ptr<TorchValue::Dict>>) {
          auto dict = std::make_shared<TorchOut::Dict>();
          for (const auto& [key, item] : *x) dict->emplace_back(ToOut(key), ToOut(item));
          return {dict};
        } else {
          return {x};
        }
      },
      value.data);
}

// Runs `call` and returns the Error it throws; fails by a CheckFailure when it throws none.
template <typename Call>
Error ErrorOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw CheckFailure("expected an Error, nothing was thrown");
}

}  // namespace oscar::test
