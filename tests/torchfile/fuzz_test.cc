// Thousands of damaged files: each is either read or refused by an Error, nothing else. Built with
// the sanitizers this also shows that no damage makes the reader leave its memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/torchfile/pickle_reader.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/torchfile/zip_reader.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// SplitMix64; written here so that the damage does not depend on the code under test.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t Roll() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Roll() % bound; }

 private:
  uint64_t state_;
};

// One to four random changes: bytes replaced, inserted or removed, ends cut off.
std::string Damage(std::string bytes, Dice& dice) {
  const uint64_t changes = 1 + dice.Below(4);
  for (uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = dice.Below(bytes.size());
    switch (dice.Below(8)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.insert(at, 1, static_cast<char>(dice.Roll()));
        break;
      case 2:
        bytes.erase(at, 1 + dice.Below(8));
        break;
      case 3:
        bytes[at] = static_cast<char>(0xff);
        break;
      case 4:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << dice.Below(8)));
        break;
      default:
        bytes[at] = static_cast<char>(dice.Roll());
        break;
    }
  }
  return bytes;
}

// Visits everything that was read, so that a wrong pointer is used and not only held.
double Touch(const TorchValue& value) {
  if (const auto* tensor = std::get_if<TorchTensor>(&value.data)) {
    double sum = 0;
    if (tensor->elements() > (1 << 20)) return 0;
    for (const double x : tensor->ToDoubles()) sum += x;
    return sum;
  }
  double sum = 0;
  if (const auto* list = std::get_if<std::shared_ptr<TorchValue::List>>(&value.data)) {
    for (const TorchValue& item : **list) sum += Touch(item);
  }
  if (const auto* dict = std::get_if<std::shared_ptr<TorchValue::Dict>>(&value.data)) {
    for (const auto& [key, item] : **dict) sum += Touch(key) + Touch(item);
  }
  return sum;
}

std::vector<fs::path> Seeds() {
  const fs::path root = fs::path(OSCAR_SOURCE_DIR) / "tests" / "golden" / "torchfile";
  std::vector<fs::path> files;
  for (const char* name : {"good/shared.pt", "good/calibration.pt", "good/protocol4.pt",
                           "good/deflated.pt", "good/zip64_deflated.pt", "good/state_dict.pt",
                           "good/empty.pt", "refused/legacy.pt", "refused/numpy_scalar.pt"}) {
    files.push_back(root / name);
  }
  return files;
}

struct Tally {
  int read = 0, refused = 0;
};

template <typename Call>
void Count(Tally& tally, const Call& call) {
  try {
    Touch(call());
    ++tally.read;
  } catch (const Error& error) {
    ASSERT_NE(std::string(error.what()), "");
    ++tally.refused;
  }
}

TEST(TorchFuzz, DamagedArchives) {
  const fs::path path = test::FreshFolder("torch_fuzz") / "damaged.pt";
  Tally tally;
  uint64_t seed = 20260517;
  for (const fs::path& source : Seeds()) {
    const std::string original = ReadTextFile(source);
    for (int i = 0; i < 400; ++i) {
      Dice dice(++seed);
      SCOPED_TRACE(fmt::format("{} seed {}", source.string(), seed));
      std::ofstream(path, std::ios::binary | std::ios::trunc) << Damage(original, dice);
      Count(tally, [&] { return ReadTorchFile(path, {.check_storage_crc = i % 2 == 0}); });
      if (HasFatalFailure()) return;
    }
  }
  // Damage in padding goes unnoticed, most other damage does not: both must occur.
  EXPECT_GT(tally.read, 100);
  EXPECT_GT(tally.refused, 1000);
}

// The CRC hides the pickle reader from most damage above; here it sees all of it.
TEST(TorchFuzz, DamagedPickles) {
  Tally tally;
  uint64_t seed = 260517757;
  for (const fs::path& source : Seeds()) {
    if (source.parent_path().filename() != "good") continue;
    ZipReader zip(source);
    std::string pickle;
    for (const ZipMember& member : zip.members()) {
      if (!member.name.ends_with("data.pkl")) continue;
      const OwnedBytes bytes = zip.Read(member, true, 1);
      pickle.assign(bytes.bytes.begin(), bytes.bytes.end());
    }
    ASSERT_FALSE(pickle.empty());
    // Exactly the bytes asked for, so that an access beyond them is one beyond the allocation.
    const StorageLoader load = [](const std::string&, DType dtype, int64_t elements) -> OwnedBytes {
      if (elements > 4096) throw Error(ErrorCode::kFormat, "too large for this test");
      const size_t bytes = static_cast<size_t>(elements) * DTypeSize(dtype);
      auto buffer = std::make_shared<std::vector<uint8_t>>(bytes, uint8_t{1});
      return {buffer, {buffer->data(), bytes}};
    };
    for (int i = 0; i < 3000; ++i) {
      Dice dice(++seed);
      SCOPED_TRACE(fmt::format("{} seed {}", source.string(), seed));
      const std::string damaged = Damage(pickle, dice);
      const std::vector<uint8_t> exact(damaged.begin(), damaged.end());
      Count(tally, [&] { return UnpickleTorch(exact, "fuzz", load); });
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(tally.read, 100);
  EXPECT_GT(tally.refused, 1000);
}

}  // namespace
}  // namespace oscar
