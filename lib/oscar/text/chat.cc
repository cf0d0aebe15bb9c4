#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/text/dataset.h"
#include "oscar/text/unicode.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

constexpr ChatTemplate kTemplates[] = {ChatTemplate::kNone, ChatTemplate::kChatml,
                                       ChatTemplate::kSmollm2, ChatTemplate::kLlama3};

constexpr char kSmollm2System[] =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

// Published template texts and what they are. Line breaks inside the quoted texts are written \n in
// some files and as themselves in others; both are compared as line breaks, and blank characters
// at the ends do not count. docs/formats/tokenizers.md says what is recognised.
struct KnownTemplate {
  ChatTemplate meaning;
  const char* text;
};
constexpr KnownTemplate kKnown[] = {
    {ChatTemplate::kChatml,
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {ChatTemplate::kChatml,
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
     "{% endif %}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {ChatTemplate::kSmollm2,
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
     "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
     "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {ChatTemplate::kLlama3,
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
     "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
     "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
     "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
};

std::string Comparable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == 'n') {
      out += '\n';
      ++i;
    } else if (text[i] != '\r') {
      out += text[i];
    }
  }
  constexpr char kBlank[] = " \t\n";
  const size_t begin = out.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return out.substr(begin, out.find_last_not_of(kBlank) + 1 - begin);
}

std::string NameList() {
  std::string out;
  for (const ChatTemplate t : kTemplates) {
    out += (out.empty() ? "" : ", ") + std::string(ChatTemplateName(t));
  }
  return out;
}

// Without the characters that Jinja's trim takes off: White_Space and the separators U+001C-1F.
std::string_view Trim(std::string_view text) {
  const auto blank = [](int32_t c) { return IsWhiteSpace(c) || (c >= 0x1c && c <= 0x1f); };
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); begin = at) {
    if (!blank(DecodeUtf8(text, at))) break;
  }
  size_t end = begin;
  for (size_t at = begin; at < text.size();) {
    if (!blank(DecodeUtf8(text, at))) end = at;
  }
  return text.substr(begin, end - begin);
}

void AppendChatml(const ChatMessage& message, std::string& out) {
  out += "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n";
}

std::string JoinContents(const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const ChatMessage& message : messages) {
    if (!out.empty()) out += "\n\n";
    out += message.content;
  }
  return out;
}

}  // namespace

std::string_view ChatTemplateName(ChatTemplate t) {
  switch (t) {
    case ChatTemplate::kNone:
      return "none";
    case ChatTemplate::kChatml:
      return "chatml";
    case ChatTemplate::kSmollm2:
      return "smollm2";
    case ChatTemplate::kLlama3:
      return "llama3";
  }
  OSCAR_CHECK(false);
  return "";
}

ChatTemplate ResolveTemplate(std::string_view name, const Tokenizer& tokenizer) {
  for (const ChatTemplate t : kTemplates) {
    if (name == ChatTemplateName(t)) return t;
  }
  if (name != "auto") {
    throw Error(ErrorCode::kUsage, Message("unknown chat template ", Quoted(name)),
                "known: auto, " + NameList());
  }
  const std::string own = Comparable(tokenizer.chat_template());
  if (own.empty()) return ChatTemplate::kNone;
  for (const KnownTemplate& known : kKnown) {
    if (own == known.text) return known.meaning;
  }
  throw Error(ErrorCode::kUnsupported,
              Message("the model's chat template is none of those known: ", Quoted(own)),
              "choose one by name: " + NameList());
}

std::string RenderChat(ChatTemplate t, const std::vector<ChatMessage>& messages,
                       bool add_generation_prompt) {
  std::string out;
  switch (t) {
    case ChatTemplate::kNone:
      return JoinContents(messages);
    case ChatTemplate::kSmollm2:
      if (!messages.empty() && messages[0].role != "system") {
        AppendChatml({"system", kSmollm2System}, out);
      }
      [[fallthrough]];
    case ChatTemplate::kChatml:
      for (const ChatMessage& message : messages) AppendChatml(message, out);
      if (add_generation_prompt) out += "<|im_start|>assistant\n";
      return out;
    case ChatTemplate::kLlama3:
      if (!messages.empty()) out += "<|begin_of_text|>";
      for (const ChatMessage& message : messages) {
        out += "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n";
        out += Trim(message.content);
        out += "<|eot_id|>";
      }
      if (add_generation_prompt) out += "<|start_header_id|>assistant<|end_header_id|>\n\n";
      return out;
  }
  OSCAR_CHECK(false);
  return out;
}

}  // namespace oscar
