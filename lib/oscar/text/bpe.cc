#include "oscar/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/text/unicode.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

constexpr uint64_t kNoKey = UINT64_MAX;

// Character -> byte for the 324 characters that can occur: index is the code point.
std::array<int16_t, 324> ByteOfCharacter() {
  std::array<int16_t, 324> out;
  out.fill(-1);
  size_t shifted = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    out[printable ? static_cast<size_t>(byte) : shifted++] = static_cast<int16_t>(byte);
  }
  return out;
}

uint64_t Mix(uint64_t key) {
  key *= 0x9e3779b97f4a7c15U;
  return key ^ (key >> 32);
}

// Higher rank or position first, for a heap whose top is the lowest.
bool Later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

bool DecodeByteAlphabet(std::string_view text, std::string& bytes) {
  static const std::array<int16_t, 324> table = ByteOfCharacter();
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const int32_t c = DecodeUtf8(text, at);
    if (c >= static_cast<int32_t>(table.size()) || table[static_cast<size_t>(c)] < 0) return false;
    bytes += static_cast<char>(table[static_cast<size_t>(c)]);
  }
  return true;
}

Bpe::Bpe(const TokenizerSpec& spec)
    : fuse_unknown_(spec.fuse_unknown), ignore_merges_(spec.ignore_merges) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  std::unordered_map<std::string_view, int32_t> ids;
  struct Entry {
    size_t begin, length;
    int32_t id;
  };
  std::vector<Entry> entries;
  std::string bytes;
  int32_t largest = 0;
  for (const auto& [text, id] : spec.vocabulary) {
    ids.emplace(text, id);
    largest = std::max(largest, id);
    if (!DecodeByteAlphabet(text, bytes) || bytes.empty()) continue;  // cannot come from text
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
    entries.push_back({blob_.size(), bytes.size(), id});
    blob_ += bytes;
  }
  pieces_.reserve(entries.size());
  for (const Entry& entry : entries) {
    pieces_.emplace(std::string_view(blob_).substr(entry.begin, entry.length), entry.id);
  }
  whole_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(largest) + 1);
  if (!spec.unknown_token.empty()) {
    const auto it = ids.find(spec.unknown_token);
    if (it == ids.end()) {
      throw Error(ErrorCode::kFormat,
                  Message(spec.source, ": the unknown token ", Quoted(spec.unknown_token),
                          " is not in the vocabulary"));
    }
    unknown_id_ = it->second;
  }
  AddMerges(spec, ids);
}

void Bpe::AddMerges(const TokenizerSpec& spec,
                    const std::unordered_map<std::string_view, int32_t>& ids) {
  const size_t slots = std::bit_ceil(std::max<size_t>(16, 2 * spec.merges.size()));
  merge_keys_.assign(slots, kNoKey);
  merges_.resize(slots);
  mask_ = slots - 1;
  const auto id_of = [&](const std::string& token, size_t rank) {
    const auto it = ids.find(token);
    if (it != ids.end()) return it->second;
    throw Error(ErrorCode::kFormat, Message(spec.source, ": merge ", rank, " uses the token ",
                                            Quoted(token), ", which is not in the vocabulary"));
  };
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const uint64_t key = Key(id_of(left, rank), id_of(right, rank));
    uint64_t slot = Mix(key) & mask_;
    while (merge_keys_[slot] != kNoKey && merge_keys_[slot] != key) slot = (slot + 1) & mask_;
    merge_keys_[slot] = key;
    merges_[slot] = {static_cast<int32_t>(rank), id_of(left + right, rank)};
  }
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t key = Key(left, right);
  for (uint64_t slot = Mix(key) & mask_;; slot = (slot + 1) & mask_) {
    if (merge_keys_[slot] == key) return &merges_[slot];
    if (merge_keys_[slot] == kNoKey) return nullptr;
  }
}

// One symbol per byte that has a token. Others become the unknown token, or nothing.
void Bpe::Start(std::string_view piece, Scratch& scratch) const {
  scratch.symbols.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id < 0;
    const bool skip = unknown && (unknown_id_ < 0 || (after_unknown && fuse_unknown_));
    after_unknown = unknown;
    if (skip) continue;
    const auto at = static_cast<int32_t>(scratch.symbols.size());
    scratch.symbols.push_back({unknown ? unknown_id_ : id, at - 1, at + 1});
  }
  if (!scratch.symbols.empty()) scratch.symbols.back().next = -1;
}

void Bpe::Push(const Scratch::Symbol& left, int32_t position, Scratch& scratch) const {
  const int32_t right = scratch.symbols[static_cast<size_t>(left.next)].id;
  const Merge* merge = FindMerge(left.id, right);
  if (merge == nullptr) return;
  scratch.queue.push_back({merge->rank, position, left.id, right});
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), Later);
}

void Bpe::MergeAll(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  Start(piece, scratch);
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  if (symbols.empty()) return;
  scratch.queue.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    Push(symbols[i], static_cast<int32_t>(i), scratch);
  }
  while (!scratch.queue.empty()) {
    std::pop_heap(scratch.queue.begin(), scratch.queue.end(), Later);
    const Scratch::Candidate top = scratch.queue.back();
    scratch.queue.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(top.position)];
    // Either side may have been merged since.
    if (left.id != top.left || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != top.right) continue;
    left.id = FindMerge(top.left, top.right)->result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols[static_cast<size_t>(left.next)].previous = top.position;
      Push(left, top.position, scratch);
    }
    if (left.previous >= 0) {
      Push(symbols[static_cast<size_t>(left.previous)], left.previous, scratch);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

void Bpe::Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  const auto it = pieces_.find(piece);
  if (it == pieces_.end()) return MergeAll(piece, scratch, out);
  if (ignore_merges_) {
    out.push_back(it->second);
    return;
  }
  std::atomic<uint8_t>& whole = whole_[static_cast<size_t>(it->second)];
  const uint8_t state = whole.load(std::memory_order_relaxed);
  if (state == 1) {
    out.push_back(it->second);
    return;
  }
  const size_t before = out.size();
  MergeAll(piece, scratch, out);
  if (state == 0) {
    const bool same = out.size() == before + 1 && out.back() == it->second;
    whole.store(same ? 1 : 2, std::memory_order_relaxed);
  }
}

}  // namespace oscar
