// Many damaged files: whatever is wrong with them, the answer is an Error or a model whose
// tensors can be read. Run under the sanitizers this also shows that nothing is read out of bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/weights/model_weights.h"
#include "support/golden.h"
#include "support/model_files.h"
#include "weights/tiny_model.h"

namespace oscar {
namespace {

using test::Bytes;

test::TinySpec Smallest() {
  test::TinySpec spec;
  spec.layers = 1;
  spec.hidden = 16;
  spec.intermediate = 16;
  spec.vocab = 8;
  spec.head_dim = 4;
  return spec;
}

// Opens and reads everything. Returns whether it could; other exceptions than Error escape.
bool Survives(const std::filesystem::path& path) {
  try {
    const auto model = OpenModel(path);
    for (int64_t layer = 0; layer < model->config().layers; ++layer) model->LoadLayer(layer, 1);
    model->FinalNorm();
    model->EmbeddingRows({0});
    model->HeadRowsRange(0, model->config().vocab, 1);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// One to four random changes: a byte set, a bit flipped, a 64-bit number replaced, a run copied.
void Corrupt(Bytes& bytes, size_t limit, Random& random) {
  const size_t end = std::min(limit, bytes.size());
  for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
    const size_t at = random.Below(end);
    switch (random.Below(4)) {
      case 0:
        bytes[at] = static_cast<uint8_t>(random.Next());
        break;
      case 1:
        bytes[at] ^= static_cast<uint8_t>(1U << random.Below(8));
        break;
      case 2: {
        const uint64_t value = random.Next() >> random.Below(64);
        std::memcpy(bytes.data() + at, &value, std::min<size_t>(8, end - at));
        break;
      }
      default: {
        const size_t from = random.Below(end);
        const size_t length = std::min<size_t>({1 + random.Below(16), end - at, end - from});
        std::memmove(bytes.data() + at, bytes.data() + from, length);
      }
    }
  }
}

TEST(Hostile, CorruptedGguf) {
  const test::TinySpec spec = Smallest();
  const Bytes good = test::TinyGguf(spec, test::TinyTensors(spec)).Finish();
  const auto path = test::FreshFolder("weights-hostile-gguf") / "m.gguf";
  test::WriteBytes(path, good);
  ASSERT_TRUE(Survives(path));
  int refused = 0;
  for (uint64_t seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Bytes bytes = good;
    Corrupt(bytes, 2000, random);  // metadata and the tensor table
    test::WriteBytes(path, bytes);
    refused += Survives(path) ? 0 : 1;
  }
  EXPECT_GT(refused, 200) << "the corruption hardly touched anything";
}

TEST(Hostile, CorruptedSafetensors) {
  const test::TinySpec spec = Smallest();
  const auto folder = test::FreshFolder("weights-hostile-safetensors");
  test::WriteTinyFolder(folder, test::TinyConfig(spec), test::TinyTensors(spec));
  ASSERT_TRUE(Survives(folder));
  const auto path = folder / "model.safetensors";
  const Bytes good = test::ReadBytes(path);
  int refused = 0;
  for (uint64_t seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Bytes bytes = good;
    Corrupt(bytes, 1000, random);
    test::WriteBytes(path, bytes);
    refused += Survives(folder) ? 0 : 1;
  }
  EXPECT_GT(refused, 150);
}

TEST(Hostile, CorruptedConfig) {
  const test::TinySpec spec = Smallest();
  const auto folder = test::FreshFolder("weights-hostile-config");
  test::WriteTinyFolder(folder, test::TinyConfig(spec), test::TinyTensors(spec));
  const Bytes good = test::ReadBytes(folder / "config.json");
  int refused = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Bytes bytes = good;
    Corrupt(bytes, bytes.size(), random);
    test::WriteBytes(folder / "config.json", bytes);
    refused += Survives(folder) ? 0 : 1;
  }
  EXPECT_GT(refused, 150);
}

// Many lengths of the header part, then some of the data.
TEST(Hostile, TruncatedFiles) {
  const test::TinySpec spec = Smallest();
  const auto folder = test::FreshFolder("weights-hostile-truncated");
  const Bytes gguf = test::TinyGguf(spec, test::TinyTensors(spec)).Finish();
  for (size_t length = 0; length < gguf.size(); length += length < 2500 ? 3 : 1021) {
    test::WriteBytes(folder / "m.gguf",
                     Bytes(gguf.begin(), gguf.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_FALSE(Survives(folder / "m.gguf")) << length;
  }
  test::WriteTinyFolder(folder, test::TinyConfig(spec), test::TinyTensors(spec));
  const Bytes good = test::ReadBytes(folder / "model.safetensors");
  for (size_t length = 0; length < good.size(); length += length < 1500 ? 7 : 1021) {
    test::WriteBytes(folder / "model.safetensors",
                     Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_FALSE(Survives(folder)) << length;
  }
}

}  // namespace
}  // namespace oscar
