// Text in, token sequences out: data files, chat templates, packing into windows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/text/tokenizer.h"

namespace oscar {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// One document: plain text, or a conversation.
struct Document {
  std::string text;  // when messages is empty
  std::vector<ChatMessage> messages;
  std::string where;  // file and line or index, for messages
};

// .txt (documents separated by a line of `---`), .jsonl ({"text":...} or {"messages":[...]}),
// .csv / .jsonl of multiple-choice questions with MMLU (question, A..D or choices, answer) or GPQA
// (Question, Correct Answer, Incorrect Answer 1..3) columns; a question becomes a user message and
// the answer an assistant message. GPQA choices are shuffled with `seed`. Throws Error(kFormat)
// naming file, line and field.
std::vector<Document> ReadDocuments(const std::filesystem::path& file, uint64_t seed);

enum class ChatTemplate { kNone, kChatml, kSmollm2, kLlama3 };
std::string_view ChatTemplateName(ChatTemplate t);
// "auto" recognises the model's own template text; throws Error(kUnsupported) with the list of
// names when it does not know it, Error(kUsage) for an unknown name.
ChatTemplate ResolveTemplate(std::string_view name, const Tokenizer& tokenizer);
// The conversation as the template renders it. kNone joins the contents with blank lines.
std::string RenderChat(ChatTemplate t, const std::vector<ChatMessage>& messages,
                       bool add_generation_prompt);

// Packs documents in order, separated by EOS, into sequences of exactly `window` tokens (the last
// one may be shorter and is dropped when shorter than `window` unless it is the only one), up to
// `max_tokens` in all.
struct PackedText {
  std::vector<std::vector<int32_t>> sequences;
  int64_t documents = 0;         // documents used at least in part
  int64_t tokens_available = 0;  // tokens of all documents, EOS included
};
PackedText PackDocuments(const std::vector<Document>& documents, ChatTemplate t,
                         const Tokenizer& tokenizer, int64_t eos_token, int64_t window,
                         int64_t max_tokens);

// --token-ids: one sequence a line of text, a JSON array of arrays, or an HDF5 file is read by the
// caller. Throws Error(kFormat) naming file and line.
std::vector<std::vector<int32_t>> ReadTokenIds(const std::filesystem::path& file);

}  // namespace oscar
