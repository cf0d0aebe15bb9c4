// Checkpoints: the hidden states of stream 0 at a layer boundary.
//
// File: "OSCARST1", then little-endian int64 next_layer, tokens, hidden; 64 hexadecimal digits that
// name model and sequences; uint64 checksum of the payload; payload [tokens, hidden] float32.
#include <cstring>
#include <fstream>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/model/runner_impl.h"
#include "oscar/model/torch_support.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

constexpr char kMagic[8] = {'O', 'S', 'C', 'A', 'R', 'S', 'T', '1'};

struct StateHeader {
  char magic[8];
  int64_t next_layer, tokens, hidden;
  char key[64];
  uint64_t checksum;
};
static_assert(sizeof(StateHeader) == 8 + 3 * 8 + 64 + 8);

// Four multiply-and-rotate chains over 32-byte blocks, then the tail: guards against torn and
// flipped bytes at the speed of memory (SHA-256 would cost as much as a layer).
uint64_t Checksum(const void* data, size_t bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15U;
  uint64_t chain[4] = {1, 2, 3, 4};
  const auto* p = static_cast<const uint8_t*>(data);
  const auto mix = [](uint64_t x, uint64_t word) {
    x = (x ^ word) * kOdd;
    return (x << 29) | (x >> 35);
  };
  for (; bytes >= sizeof(chain); bytes -= sizeof(chain), p += sizeof(chain)) {
    uint64_t words[4];
    std::memcpy(words, p, sizeof(words));
    for (int i = 0; i < 4; ++i) chain[i] = mix(chain[i], words[i]);
  }
  uint64_t result = bytes;
  for (const uint64_t x : chain) result = mix(result, x);
  for (size_t i = 0; i < bytes; ++i) result = mix(result, p[i]);
  return result;
}

}  // namespace

struct RunnerState::Impl {
  int64_t next_layer;
  at::Tensor hidden;  // CPU, [tokens, hidden]
  std::string key;
};

RunnerState::RunnerState(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunnerState::~RunnerState() = default;
int64_t RunnerState::next_layer() const { return impl_->next_layer; }

void RunnerState::Save(const std::filesystem::path& file) const {
  const auto* payload = static_cast<const char*>(impl_->hidden.const_data_ptr());
  const size_t bytes = impl_->hidden.nbytes();
  StateHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.next_layer = impl_->next_layer;
  header.tokens = impl_->hidden.size(0);
  header.hidden = impl_->hidden.size(1);
  std::memcpy(header.key, impl_->key.data(), sizeof(header.key));
  header.checksum = Checksum(payload, bytes);
  const std::filesystem::path temporary = TemporarySibling(file);
  TemporaryGuard guard(temporary);
  std::ofstream out(temporary, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header), sizeof(header));
  out.write(payload, static_cast<std::streamsize>(bytes));
  out.close();
  if (!out) {
    throw Error(ErrorCode::kIo, Message(file.string(), ": cannot write the checkpoint"),
                "is the disk full?");
  }
  Publish(temporary, file, true);
  guard.Keep();
}

std::string RunnerData::StateKey() const {
  Sha256 hash;
  hash.Update(weights.config_hash().data(), weights.config_hash().size());
  const std::string model = weights.model_id();
  hash.Update(model.data(), model.size());
  for (const std::vector<int32_t>& ids : sequences) {
    const auto length = static_cast<int64_t>(ids.size());
    hash.Update(&length, sizeof(length));
    hash.Update(ids.data(), ids.size() * sizeof(int32_t));
  }
  return hash.Hex();
}

std::shared_ptr<const RunnerState> ModelRunner::State() const {
  auto state = std::make_unique<RunnerState::Impl>();
  state->next_layer = impl_->next_layer;
  state->hidden = impl_->streams[0].hidden.cpu();
  state->key = impl_->StateKey();
  return std::shared_ptr<const RunnerState>(new RunnerState(std::move(state)));
}

void ModelRunner::RestoreState(const std::filesystem::path& file) {
  OSCAR_CHECK(impl_->streams.size() == 1);
  const MappedFile map(file);
  const auto damaged = [&](const std::string& what) {
    return Error(ErrorCode::kFormat, Message(file.string(), ": ", what),
                 "delete it and start again without --resume");
  };
  StateHeader header;
  if (map.bytes().size() < sizeof(header)) throw damaged("too short for a checkpoint");
  std::memcpy(&header, map.bytes().data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) throw damaged("not a checkpoint");
  if (impl_->StateKey() != std::string_view(header.key, sizeof(header.key)) ||
      header.tokens != impl_->tokens() || header.hidden != impl_->config.hidden) {
    throw Error(ErrorCode::kMismatch,
                Message(file.string(), ": belongs to another model or other sequences"));
  }
  if (header.next_layer < 0 || header.next_layer > impl_->config.layers) {
    throw damaged(Message("next layer ", header.next_layer, " of ", impl_->config.layers));
  }
  const uint8_t* payload = map.bytes().data() + sizeof(header);
  const auto bytes = static_cast<size_t>(header.tokens * header.hidden) * sizeof(float);
  if (map.bytes().size() != sizeof(header) + bytes) {
    throw damaged(
        Message(map.bytes().size() - sizeof(header), " bytes of hidden states, expected ", bytes));
  }
  if (Checksum(payload, bytes) != header.checksum) throw damaged("checksum does not match");
  GuardTorch("restoring a checkpoint", [&] {
    const at::Tensor hidden = at::empty({header.tokens, header.hidden}, at::kFloat);
    std::memcpy(hidden.data_ptr(), payload, bytes);
    impl_->streams[0].hidden = hidden.to(impl_->device);
    impl_->streams[0].on_host = at::Tensor();
  });
  impl_->next_layer = header.next_layer;
}

}  // namespace oscar
