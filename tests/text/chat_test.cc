#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/text/dataset.h"
#include "support/model_files.h"

namespace oscar {
namespace {

// A tokenizer that has nothing but a chat template.
class TemplateOnly final : public Tokenizer {
 public:
  explicit TemplateOnly(std::string text) : text_(std::move(text)) {}
  std::vector<int32_t> Encode(std::string_view) const override { return {}; }
  int64_t vocab_size() const override { return 0; }
  int32_t SpecialId(std::string_view) const override { return -1; }
  std::string hash() const override { return ""; }
  const std::string& chat_template() const override { return text_; }

 private:
  std::string text_;
};

const std::vector<ChatMessage> kTalk = {{"system", " be kind "}, {"user", " Hi\n"}};

TEST(Chat, Renderings) {
  EXPECT_EQ(RenderChat(ChatTemplate::kNone, kTalk, true), " be kind \n\n Hi\n");
  EXPECT_EQ(RenderChat(ChatTemplate::kChatml, kTalk, false),
            "<|im_start|>system\n be kind <|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n");
  EXPECT_EQ(RenderChat(ChatTemplate::kSmollm2, {{"user", "Hi"}}, true),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  // Contents are trimmed, U+00A0 and U+3000 included.
  EXPECT_EQ(RenderChat(ChatTemplate::kLlama3, {{"user", "\xc2\xa0 Hi \xe3\x80\x80\n"}}, true),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(RenderChat(ChatTemplate::kLlama3, {{"user", " \n "}}, false),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>");
  for (const ChatTemplate t : {ChatTemplate::kNone, ChatTemplate::kChatml, ChatTemplate::kSmollm2,
                               ChatTemplate::kLlama3}) {
    EXPECT_EQ(RenderChat(t, {}, false), "");
  }
}

TEST(Chat, NamesResolve) {
  const TemplateOnly none("");
  EXPECT_EQ(ResolveTemplate("none", none), ChatTemplate::kNone);
  EXPECT_EQ(ResolveTemplate("chatml", none), ChatTemplate::kChatml);
  EXPECT_EQ(ResolveTemplate("smollm2", none), ChatTemplate::kSmollm2);
  EXPECT_EQ(ResolveTemplate("llama3", none), ChatTemplate::kLlama3);
  EXPECT_EQ(ResolveTemplate("auto", none), ChatTemplate::kNone) << "a model without a template";
  OSCAR_EXPECT_ERROR(ResolveTemplate("alpaca", none), ErrorCode::kUsage, "'alpaca'");
  try {
    ResolveTemplate("auto", TemplateOnly("{{ something }}"));
    ADD_FAILURE() << "recognised an unknown template";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    for (const char* name : {"none", "chatml", "smollm2", "llama3"}) {
      EXPECT_NE(error.hint().find(name), std::string::npos) << error.hint();
    }
  }
}

// Line breaks inside the quoted texts may be escaped; blanks at the ends do not count.
TEST(Chat, AutoRecognisesSpellings) {
  const std::string escaped =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\\n' }}{% endif %}\n";
  EXPECT_EQ(ResolveTemplate("auto", TemplateOnly(escaped)), ChatTemplate::kChatml);
  std::string other = escaped;
  other.replace(other.find("assistant"), 9, "model");
  OSCAR_EXPECT_ERROR(ResolveTemplate("auto", TemplateOnly(other)), ErrorCode::kUnsupported,
                     "chat template");
}

}  // namespace
}  // namespace oscar
