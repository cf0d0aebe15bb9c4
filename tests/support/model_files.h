// Writers of small safetensors and GGUF files for tests, plain enough to be checked by eye against
// the formats' definitions. They write whatever they are told, so they can lie on purpose.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace oscar::test {

using Bytes = std::vector<uint8_t>;

inline void WriteBytes(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

inline Bytes ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Out of line: inlined into initialised buffers, the growth of a vector makes GCC 12 see copies out
// of bounds that never happen.
__attribute__((noinline)) inline void Append(Bytes& out, const void* data, size_t bytes) {
  const size_t at = out.size();
  out.resize(at + bytes);
  if (bytes > 0) std::memcpy(out.data() + at, data, bytes);
}
inline void Append(Bytes& out, const Bytes& more) { Append(out, more.data(), more.size()); }

inline Bytes FloatBytes(const std::vector<float>& values) {
  Bytes out(values.size() * 4);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

struct FileTensor {
  std::string name;
  std::string dtype;           // safetensors
  uint32_t ggml_type = 0;      // GGUF
  std::vector<int64_t> shape;  // outermost first
  Bytes data;
};

inline FileTensor F32Tensor(const std::string& name, const std::vector<int64_t>& shape,
                            const std::vector<float>& values) {
  return {name, "F32", 0, shape, FloatBytes(values)};
}

// A safetensors file with the given header (any text) and data.
inline Bytes SafetensorsBytes(const std::string& header, const Bytes& data) {
  Bytes out(8);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  Append(out, header.data(), header.size());
  Append(out, data);
  return out;
}

inline nlohmann::json SafetensorsHeader(const std::vector<FileTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  size_t at = 0;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.data.size()}}};
    at += tensor.data.size();
  }
  return header;
}

inline void WriteSafetensors(const std::filesystem::path& path,
                             const std::vector<FileTensor>& tensors) {
  Bytes data;
  for (const FileTensor& tensor : tensors) {
    Append(data, tensor.data);
  }
  WriteBytes(path, SafetensorsBytes(SafetensorsHeader(tensors).dump(), data));
}

// Builds a GGUF file key by key and tensor by tensor.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;

  void Text(const std::string& key, const std::string& value) {
    Key(key, 8);
    PutText(meta_, value);
  }
  void U32(const std::string& key, uint32_t value) {
    Key(key, 4);
    Put(meta_, value);
  }
  void F32(const std::string& key, float value) {
    Key(key, 6);
    Put(meta_, value);
  }
  void Bool(const std::string& key, bool value) {
    Key(key, 7);
    Put<uint8_t>(meta_, value ? 1 : 0);
  }
  void Texts(const std::string& key, const std::vector<std::string>& values) {
    Key(key, 9);
    Put<uint32_t>(meta_, 8);
    Put<uint64_t>(meta_, values.size());
    for (const std::string& value : values) PutText(meta_, value);
  }
  void I32s(const std::string& key, const std::vector<int32_t>& values) {
    Key(key, 9);
    Put<uint32_t>(meta_, 5);
    Put<uint64_t>(meta_, values.size());
    for (const int32_t value : values) Put(meta_, value);
  }
  // A key with a value type and value bytes of the caller's making.
  void Raw(const std::string& key, uint32_t type, const Bytes& value) {
    Key(key, type);
    Append(meta_, value);
  }
  // `offset` < 0: the next free place.
  void Tensor(const FileTensor& tensor, int64_t offset = -1) {
    PutText(table_, tensor.name);
    Put<uint32_t>(table_, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      Put<uint64_t>(table_, static_cast<uint64_t>(tensor.shape[i]));
    }
    Put(table_, tensor.ggml_type);
    while (data_.size() % alignment != 0) data_.push_back(0);
    Put<uint64_t>(table_, offset < 0 ? data_.size() : static_cast<uint64_t>(offset));
    Append(data_, tensor.data);
    ++tensors_;
  }
  Bytes Finish() const {
    Bytes out = {'G', 'G', 'U', 'F'};
    Put(out, version);
    Put<uint64_t>(out, tensors_);
    Put<uint64_t>(out, keys_);
    Append(out, meta_);
    Append(out, table_);
    while (out.size() % alignment != 0) out.push_back(0);
    Append(out, data_);
    return out;
  }

 private:
  template <typename T>
  static void Put(Bytes& out, T value) {
    Append(out, &value, sizeof(T));
  }
  static void PutText(Bytes& out, const std::string& text) {
    Put<uint64_t>(out, text.size());
    Append(out, text.data(), text.size());
  }
  void Key(const std::string& key, uint32_t type) {
    PutText(meta_, key);
    Put(meta_, type);
    ++keys_;
  }

  Bytes meta_, table_, data_;
  uint64_t tensors_ = 0, keys_ = 0;
};

// Runs `action`, which must throw an Error of the given code on one line that holds the given
// texts.
#define OSCAR_EXPECT_ERROR(action, error_code, ...)                                       \
  do {                                                                                    \
    try {                                                                                 \
      action;                                                                             \
      ADD_FAILURE() << "no error from " #action;                                          \
    } catch (const ::oscar::Error& error) {                                               \
      EXPECT_EQ(::oscar::ErrorCodeName(error.code()), ::oscar::ErrorCodeName(error_code)) \
          << error.what();                                                                \
      for (const std::string& part : std::vector<std::string>{__VA_ARGS__}) {             \
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)                \
            << "'" << part << "' is not in: " << error.what();                            \
      }                                                                                   \
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);                 \
    }                                                                                     \
  } while (false)

}  // namespace oscar::test
