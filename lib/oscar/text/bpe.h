// Byte pair encoding over bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "oscar/text/tokenizer_spec.h"

namespace oscar {

// The raw bytes of a token text in the byte-to-character alphabet of GPT-2 (printable Latin-1
// characters stand for themselves, the others for U+0100 and up). False when a character is none
// of that alphabet.
bool DecodeByteAlphabet(std::string_view text, std::string& bytes);

class Bpe {
 public:
  // Throws Error(kFormat) naming the token of a merge that is not in the vocabulary.
  explicit Bpe(const TokenizerSpec& spec);

  // Working memory of one thread.
  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;
    };
    struct Candidate {
      int32_t rank, position, left, right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };

  // Appends the ids of one piece: starting from single bytes, the adjacent pair with the lowest
  // merge rank (the leftmost of equals) is joined until no pair has a rank. O(n log n).
  void Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank, result;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void AddMerges(const TokenizerSpec& spec,
                 const std::unordered_map<std::string_view, int32_t>& ids);
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void Start(std::string_view piece, Scratch& scratch) const;
  void Push(const Scratch::Symbol& left, int32_t position, Scratch& scratch) const;
  void MergeAll(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  int32_t byte_ids_[256];  // -1: no token
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  std::string blob_;  // bytes of all tokens
  std::unordered_map<std::string_view, int32_t> pieces_;
  // Open addressing: keys and merges side by side, a power of two of slots.
  std::vector<uint64_t> merge_keys_;
  std::vector<Merge> merges_;
  uint64_t mask_ = 0;
  // Per token: whether merging its bytes gives the token itself (1), something else (2), or was
  // not tried yet (0). Most pieces of text are such tokens and need no merging.
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace oscar
