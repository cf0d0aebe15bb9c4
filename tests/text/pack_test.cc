#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/text/dataset.h"
#include "support/golden.h"
#include "support/model_files.h"

namespace oscar {
namespace {

// One token per character: its code.
class Characters final : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    if (text.find('!') != text.npos) throw Error(ErrorCode::kFormat, "bad text");
    return {text.begin(), text.end()};
  }
  int64_t vocab_size() const override { return 128; }
  int32_t SpecialId(std::string_view) const override { return -1; }
  std::string hash() const override { return ""; }
  const std::string& chat_template() const override { return text_; }

 private:
  std::string text_;
};

PackedText Pack(const std::vector<std::string>& texts, int64_t eos, int64_t window, int64_t max) {
  std::vector<Document> documents;
  for (const std::string& text : texts) documents.push_back({text, {}, "here"});
  return PackDocuments(documents, ChatTemplate::kNone, Characters(), eos, window, max);
}

std::vector<std::string> Texts(const PackedText& packed) {
  std::vector<std::string> out;
  for (const auto& sequence : packed.sequences) out.emplace_back(sequence.begin(), sequence.end());
  return out;
}

using Strings = std::vector<std::string>;

TEST(Pack, WindowsAreFullAndInOrder) {
  const PackedText packed = Pack({"abc", "defg", "hi"}, '.', 4, 1000);
  EXPECT_EQ(Texts(packed), (Strings{"abc.", "defg"}));  // ".hi" is shorter than a window
  EXPECT_EQ(packed.tokens_available, 11);
  EXPECT_EQ(packed.documents, 2);
}

TEST(Pack, TheOnlySequenceMayBeShorter) {
  EXPECT_EQ(Texts(Pack({"abc"}, '.', 8, 1000)), (Strings{"abc"}));
  EXPECT_EQ(Texts(Pack({"abc", "de"}, '.', 8, 1000)), (Strings{"abc.de"}));
  EXPECT_EQ(Texts(Pack({"abcdefgh"}, '.', 8, 1000)), (Strings{"abcdefgh"}));
}

TEST(Pack, StopsAtTheLimit) {
  const PackedText packed = Pack({"abcdef", "ghijkl", "mnopqr"}, '.', 3, 10);
  EXPECT_EQ(Texts(packed), (Strings{"abc", "def", ".gh"}));
  EXPECT_EQ(packed.documents, 2);
  EXPECT_EQ(packed.tokens_available, 20);
  EXPECT_EQ(Texts(Pack({"abcdef"}, '.', 4, 3)), (Strings{"abc"}));
}

TEST(Pack, WithoutEosDocumentsTouch) {
  EXPECT_EQ(Texts(Pack({"ab", "cd"}, -1, 4, 100)), (Strings{"abcd"}));
}

TEST(Pack, ConversationsAreRendered) {
  Document chat;
  chat.messages = {{"user", "x"}, {"assistant", "y"}};
  const auto packed = PackDocuments({chat}, ChatTemplate::kChatml, Characters(), 0, 1000, 1000);
  EXPECT_EQ(Texts(packed),
            (Strings{"<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n"}));
  EXPECT_EQ(Texts(PackDocuments({chat}, ChatTemplate::kNone, Characters(), 0, 1000, 1000)),
            (Strings{"x\n\ny"}));
}

TEST(Pack, Faults) {
  OSCAR_EXPECT_ERROR(Pack({}, 0, 4, 10), ErrorCode::kData, "no tokens");
  OSCAR_EXPECT_ERROR(Pack({""}, 0, 4, 10), ErrorCode::kData, "no tokens");
  OSCAR_EXPECT_ERROR(Pack({"a"}, 0, 0, 10), ErrorCode::kUsage, "windows of 0");
  OSCAR_EXPECT_ERROR(Pack({"a"}, 0, 4, 0), ErrorCode::kUsage, "0 tokens");
  OSCAR_EXPECT_ERROR(Pack({"a!"}, 0, 4, 10), ErrorCode::kFormat, "here: bad text");
}

std::vector<std::vector<int32_t>> ReadIds(const std::string& name, const std::string& text) {
  const auto path = test::FreshFolder("text-ids") / name;
  std::ofstream(path, std::ios::binary) << text;
  return ReadTokenIds(path);
}

TEST(TokenIds, TextAndJson) {
  const std::vector<std::vector<int32_t>> expected = {{1, 2, 3}, {40}};
  EXPECT_EQ(ReadIds("a.txt", "1 2\t3\r\n\n40\n"), expected);
  EXPECT_EQ(ReadIds("a.txt", "1, 2,3\n40,"), expected);
  EXPECT_EQ(ReadIds("a.json", "[[1, 2, 3], [], [40]]"), expected);
  EXPECT_EQ(ReadIds("a.txt", " [[1, 2, 3], [40]]"), expected);
}

TEST(TokenIds, Faults) {
  OSCAR_EXPECT_ERROR(ReadIds("a.txt", "1\n2 x"), ErrorCode::kFormat, "a.txt:2", "'x'");
  OSCAR_EXPECT_ERROR(ReadIds("a.txt", "1\n-2"), ErrorCode::kFormat, "a.txt:2", "-2");
  OSCAR_EXPECT_ERROR(ReadIds("a.txt", "1.5"), ErrorCode::kFormat, "'1.5'");
  OSCAR_EXPECT_ERROR(ReadIds("a.txt", "99999999999"), ErrorCode::kFormat, "99999999999");
  OSCAR_EXPECT_ERROR(ReadIds("a.txt", "99999999999999999999999"), ErrorCode::kFormat, "a.txt:1");
  OSCAR_EXPECT_ERROR(ReadIds("a.txt", "\n"), ErrorCode::kData, "a.txt");
  OSCAR_EXPECT_ERROR(ReadIds("a.json", "{}"), ErrorCode::kFormat, "list of lists");
  OSCAR_EXPECT_ERROR(ReadIds("a.json", "[1]"), ErrorCode::kFormat, "sequence 1");
  OSCAR_EXPECT_ERROR(ReadIds("a.json", "[[1], [2, \"x\"]]"), ErrorCode::kFormat, "sequence 2");
  OSCAR_EXPECT_ERROR(ReadIds("a.json", "[[1], [-1]]"), ErrorCode::kFormat, "sequence 2");
  OSCAR_EXPECT_ERROR(ReadIds("a.json", "[]"), ErrorCode::kData, "a.json");
}

}  // namespace
}  // namespace oscar
