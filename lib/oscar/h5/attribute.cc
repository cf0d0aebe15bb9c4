#include <fmt/format.h>

#include <algorithm>

#include "oscar/h5/internal.h"

namespace oscar {

using h5::Check;
using h5::Own;
using h5::Session;

namespace {

herr_t Append(hid_t, const char* name, const H5A_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

// A scalar attribute, or an array of one element.
class OpenAttribute {
 public:
  OpenAttribute(hid_t object, const std::string& name, const std::string& owner)
      : where_(fmt::format("attribute {} of {}", name, owner)) {
    if (Check(H5Aexists(object, name.c_str()), ErrorCode::kFormat, "look for", where_) == 0) {
      throw Error(ErrorCode::kFormat, fmt::format("{} has no attribute {}", owner, name));
    }
    id_ = Own(H5Aopen(object, name.c_str(), H5P_DEFAULT), h5::CloseAttribute, ErrorCode::kFormat,
              "open", where_);
    type_ = Own(H5Aget_type(id_.get()), h5::CloseType, ErrorCode::kFormat, "read", where_);
    space_ = Own(H5Aget_space(id_.get()), h5::CloseSpace, ErrorCode::kFormat, "read", where_);
    if (H5Sget_simple_extent_npoints(space_.get()) != 1) {
      throw Error(ErrorCode::kFormat, fmt::format("{}: expected one value", where_));
    }
  }

  H5Type type() const { return h5::Classify(type_.get()); }

  template <typename T>
  T Number() const {
    const H5Handle memory = h5::TypeOf<T>();
    T value{};
    Check(H5Aread(id_.get(), memory.get(), &value), ErrorCode::kFormat, "read", where_);
    return value;
  }

  std::string Text() const {
    return h5::ReadText(type_.get(), space_.get(), 1, where_,
                        [&](hid_t memory, void* out) { return H5Aread(id_.get(), memory, out); })
        .front();
  }

  void Require(bool fits, std::string_view expected) const {
    if (!fits) {
      throw Error(ErrorCode::kFormat,
                  fmt::format("{}: expected {}, found {}", where_, expected, H5TypeName(type())));
    }
  }

 private:
  std::string where_;
  H5Handle id_, type_, space_;
};

std::string ReadTextAttribute(hid_t object, const std::string& name, const std::string& owner) {
  const OpenAttribute attribute(object, name, owner);
  attribute.Require(attribute.type() == H5Type::kString, "text");
  return attribute.Text();
}

void WriteAttribute(hid_t object, const std::string& name, const H5Handle& type, const void* value,
                    const std::string& owner) {
  const std::string where = fmt::format("attribute {} of {}", name, owner);
  const H5Handle space = Own(H5Screate(H5S_SCALAR), h5::CloseSpace, ErrorCode::kIo, "shape", where);
  const H5Handle attribute =
      Own(H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
          h5::CloseAttribute, ErrorCode::kIo, "create", where);
  Check(H5Awrite(attribute.get(), type.get(), value), ErrorCode::kIo, "write", where);
}

}  // namespace

std::vector<std::string> H5Group::AttributeNames() const {
  const Session session;
  std::vector<std::string> names;
  hsize_t position = 0;
  Check(H5Aiterate2(id(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, Append, &names),
        ErrorCode::kFormat, "list the attributes of", where_);
  std::sort(names.begin(), names.end());
  return names;
}

bool H5Group::HasAttribute(const std::string& name) const {
  const Session session;
  return Check(H5Aexists(id(), name.c_str()), ErrorCode::kFormat, "look for attributes of",
               where_) > 0;
}

double H5Group::RealAttribute(const std::string& name) const {
  const Session session;
  const OpenAttribute attribute(id(), name, where_);
  attribute.Require(h5::IsFloat(attribute.type()) || h5::IsInteger(attribute.type()), "a number");
  return attribute.Number<double>();
}

int64_t H5Group::IntAttribute(const std::string& name) const {
  const Session session;
  const OpenAttribute attribute(id(), name, where_);
  attribute.Require(h5::IsInteger(attribute.type()), "an integer");
  return attribute.Number<int64_t>();
}

std::string H5Group::TextAttribute(const std::string& name) const {
  const Session session;
  return ReadTextAttribute(id(), name, where_);
}

std::string H5Group::TextAttribute(const std::string& dataset, const std::string& name) const {
  const Session session;
  const H5Dataset owner = Dataset(dataset);
  return ReadTextAttribute(owner.id_.get(), name, owner.where());
}

void H5Group::SetAttribute(const std::string& name, double value) {
  const Session session;
  WriteAttribute(id(), name, h5::TypeOf<double>(), &value, where_);
}

void H5Group::SetAttribute(const std::string& name, int64_t value) {
  const Session session;
  WriteAttribute(id(), name, h5::TypeOf<int64_t>(), &value, where_);
}

void H5Group::SetAttribute(const std::string& name, std::string_view value) {
  const Session session;
  // An empty string still needs one byte.
  const std::string text(value.empty() ? std::string_view("\0", 1) : value);
  WriteAttribute(id(), name, h5::FixedText(text.size()), text.data(), where_);
}

}  // namespace oscar
