#include <array>
#include <bit>
#include <string_view>

#include "oscar/h5/internal.h"

namespace oscar {

std::string_view H5TypeName(H5Type type) {
  static constexpr std::array<std::string_view, 14> kNames = {"f64", "f32", "f16",    "bf16", "i64",
                                                              "i32", "i16", "i8",     "u64",  "u32",
                                                              "u16", "u8",  "string", "other"};
  return kNames.at(static_cast<size_t>(type));
}

std::string H5LibraryVersion() {
  const h5::Session session;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  h5::Check(H5get_libversion(&major, &minor, &release), ErrorCode::kIo, "ask", "the HDF5 version");
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

namespace h5 {
namespace {

// TypeOf names file and memory types alike.
static_assert(std::endian::native == std::endian::little, "only little-endian machines");

constexpr std::string_view kAction = "build";

H5Handle CopyOf(hid_t type) {
  return Own(H5Tcopy(type), CloseType, ErrorCode::kIo, kAction, "an HDF5 type");
}

// A 16-bit float: sign in bit 15, then exponent, then mantissa from bit 0.
H5Handle HalfFloat(size_t exponent_bits, size_t bias) {
  H5Handle type = CopyOf(H5T_IEEE_F32LE);
  const size_t mantissa_bits = 15 - exponent_bits;
  const auto check = [](herr_t status) {
    Check(status, ErrorCode::kIo, kAction, "a 16-bit float type");
  };
  check(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits));
  check(H5Tset_size(type.get(), 2));
  check(H5Tset_ebias(type.get(), bias));
  return type;
}

H5Type ClassifyFloat(hid_t type) {
  size_t sign = 0, exponent_position = 0, exponent = 0, mantissa_position = 0, mantissa = 0;
  if (H5Tget_fields(type, &sign, &exponent_position, &exponent, &mantissa_position, &mantissa) <
      0) {
    return H5Type::kOther;
  }
  const size_t size = H5Tget_size(type);
  if (size == 8 && exponent == 11 && mantissa == 52) return H5Type::kF64;
  if (size == 4 && exponent == 8 && mantissa == 23) return H5Type::kF32;
  if (size == 2 && exponent == 5 && mantissa == 10) return H5Type::kF16;
  if (size == 2 && exponent == 8 && mantissa == 7) return H5Type::kBF16;
  return H5Type::kOther;
}

H5Type ClassifyInteger(hid_t type) {
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  switch (H5Tget_size(type)) {
    case 8:
      return is_signed ? H5Type::kI64 : H5Type::kU64;
    case 4:
      return is_signed ? H5Type::kI32 : H5Type::kU32;
    case 2:
      return is_signed ? H5Type::kI16 : H5Type::kU16;
    case 1:
      return is_signed ? H5Type::kI8 : H5Type::kU8;
    default:
      return H5Type::kOther;
  }
}

}  // namespace

template <>
H5Handle TypeOf<double>() {
  return CopyOf(H5T_IEEE_F64LE);
}
template <>
H5Handle TypeOf<float>() {
  return CopyOf(H5T_IEEE_F32LE);
}
template <>
H5Handle TypeOf<int64_t>() {
  return CopyOf(H5T_STD_I64LE);
}
template <>
H5Handle TypeOf<int32_t>() {
  return CopyOf(H5T_STD_I32LE);
}
template <>
H5Handle TypeOf<uint64_t>() {
  return CopyOf(H5T_STD_U64LE);
}
template <>
H5Handle TypeOf<uint16_t>() {
  return CopyOf(H5T_STD_U16LE);
}
template <>
H5Handle TypeOf<uint8_t>() {
  return CopyOf(H5T_STD_U8LE);
}
template <>
H5Handle TypeOf<BFloat16>() {
  return HalfFloat(8, 127);
}

H5Handle FixedText(size_t size) {
  H5Handle type = CopyOf(H5T_C_S1);
  const auto check = [](herr_t status) { Check(status, ErrorCode::kIo, kAction, "a string type"); };
  check(H5Tset_size(type.get(), size > 0 ? size : 1));
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

H5Type Classify(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return ClassifyFloat(type);
    case H5T_INTEGER:
      return ClassifyInteger(type);
    case H5T_STRING:
      return H5Type::kString;
    default:
      return H5Type::kOther;
  }
}

bool IsFloat(H5Type type) { return type <= H5Type::kBF16; }
bool IsInteger(H5Type type) { return type >= H5Type::kI64 && type <= H5Type::kU8; }
bool IsUnsigned(H5Type type) { return type >= H5Type::kU64 && type <= H5Type::kU8; }

}  // namespace h5
}  // namespace oscar
