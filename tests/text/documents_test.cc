#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/text/csv.h"
#include "oscar/text/dataset.h"
#include "support/golden.h"
#include "support/model_files.h"

namespace oscar {
namespace {

std::filesystem::path Write(const std::string& name, const std::string& text) {
  const auto path = test::FreshFolder("text-documents") / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::vector<Document> Read(const std::string& name, const std::string& text, uint64_t seed = 1) {
  return ReadDocuments(Write(name, text), seed);
}

using Fields = std::vector<std::string>;

TEST(Csv, Rfc4180) {
  const std::vector<CsvRecord> records = ParseCsv(
      "a,b,c\r\n\"x, y\",\"say \"\"hi\"\"\",\n\"two\nlines\",,\" \"\n\n,\r\nlast,\"\"", "f.csv");
  ASSERT_EQ(records.size(), 5U);
  EXPECT_EQ(records[0].fields, (Fields{"a", "b", "c"}));
  EXPECT_EQ(records[1].fields, (Fields{"x, y", "say \"hi\"", ""}));
  EXPECT_EQ(records[2].fields, (Fields{"two\nlines", "", " "}));
  EXPECT_EQ(records[3].fields, (Fields{"", ""}));
  EXPECT_EQ(records[4].fields, (Fields{"last", ""}));
  EXPECT_EQ(records[2].line, 3);
  EXPECT_EQ(records[3].line, 6) << "the quoted line break counts, the empty line too";
  EXPECT_TRUE(ParseCsv("", "f").empty());
  EXPECT_TRUE(ParseCsv("\n\r\n", "f").empty());
  EXPECT_EQ(ParseCsv("a\rb,c\r", "f")[0].fields, (Fields{"a\rb", "c"}));
}

TEST(Csv, Faults) {
  OSCAR_EXPECT_ERROR(ParseCsv("a\n\"b\nc", "f.csv"), ErrorCode::kFormat, "f.csv:2", "never ends");
  OSCAR_EXPECT_ERROR(ParseCsv("a\n\"b\"c,d", "f.csv"), ErrorCode::kFormat, "f.csv:2");
  OSCAR_EXPECT_ERROR(ParseCsv("a\n\nb\"c,d", "f.csv"), ErrorCode::kFormat, "f.csv:3");
}

TEST(Documents, PlainText) {
  const auto documents =
      Read("a.txt", "\xef\xbb\xbfone\r\ntwo\r\n---\r\n\r\n  three\n--- \n---\n----\nfour ---\n\n");
  ASSERT_EQ(documents.size(), 3U);
  EXPECT_EQ(documents[0].text, "one\ntwo");
  EXPECT_EQ(documents[1].text, "  three");
  EXPECT_EQ(documents[2].text, "----\nfour ---");
  EXPECT_TRUE(documents[0].messages.empty());
  EXPECT_NE(documents[1].where.find("a.txt:4"), std::string::npos) << documents[1].where;
  OSCAR_EXPECT_ERROR(Read("a.txt", ""), ErrorCode::kData, "a.txt");
  OSCAR_EXPECT_ERROR(Read("a.txt", "---\n \n---\n"), ErrorCode::kData, "a.txt");
  OSCAR_EXPECT_ERROR(Read("a.txt", "fine\nb\xff \n"), ErrorCode::kFormat, "a.txt:2", "UTF-8");
  OSCAR_EXPECT_ERROR(Read("a.pdf", "x"), ErrorCode::kUsage, "a.pdf");
  OSCAR_EXPECT_ERROR(ReadDocuments("/no/such.txt", 1), ErrorCode::kIo, "/no/such.txt");
}

TEST(Documents, JsonLines) {
  const auto documents = Read("a.jsonl",
                              "{\"text\": \"one\"}\n\n"
                              "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"},"
                              " {\"role\": \"assistant\", \"content\": \"\"}]}\r\n");
  ASSERT_EQ(documents.size(), 2U);
  EXPECT_EQ(documents[0].text, "one");
  ASSERT_EQ(documents[1].messages.size(), 2U);
  EXPECT_EQ(documents[1].messages[0].role, "user");
  EXPECT_EQ(documents[1].messages[0].content, "hi");
  const struct {
    const char* line;
    const char* named;
  } bad[] = {
      {"{", "JSON"},
      {"[1]", "expected an object"},
      {"{\"txt\": \"a\"}", "expected an object"},
      {"{\"text\": 3}", "'text'"},
      {"{\"text\": \"\"}", "'text'"},
      {"{\"messages\": []}", "'messages'"},
      {"{\"messages\": [{\"role\": \"user\"}]}", "'content'"},
      {"{\"messages\": [{\"content\": \"x\"}]}", "'role'"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}", "'content'"},
      {"{\"question\": \"q\", \"choices\": [\"a\", \"b\"]}", "'answer'"},
      {"{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 2}", "'answer'"},
      {"{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": \"C\"}", "'answer'"},
      {"{\"question\": \"q\", \"choices\": [\"a\"], \"answer\": 0}", "choices"},
      {"{\"question\": \"q\", \"choices\": [\"a\", \" \"], \"answer\": 0}", "choice B"},
      {"{\"question\": \"q\", \"choices\": \"ab\", \"answer\": 0}", "'choices'"},
      {"{\"question\": \" \", \"choices\": [\"a\", \"b\"], \"answer\": 0}", "'question'"},
      {"{\"question\": \"q\", \"A\": \"1\", \"B\": \"2\", \"C\": \"3\", \"answer\": \"A\"}", "'D'"},
      {"{\"Question\": \"q\", \"Correct Answer\": \"a\"}", "'Incorrect Answer 1'"},
  };
  for (const auto& c : bad) {
    SCOPED_TRACE(c.line);
    OSCAR_EXPECT_ERROR(Read("a.jsonl", std::string("{\"text\": \"fine\"}\n") + c.line + "\n"),
                       ErrorCode::kFormat, c.named, "a.jsonl:2");
  }
}

// Every layout of the same question gives the same conversation.
TEST(Documents, QuestionLayouts) {
  const std::vector<std::pair<const char*, std::string>> files = {
      {"a.csv", "question,subject,A,B,C,D,answer\nWhich?,some_subject,w,x,y,z,C\n"},
      {"a.csv", "Subject,Question,a,b,c,d,Answer\r\nsome_subject,Which?,w,x,y,z,2\r\n"},
      {"a.jsonl",
       R"({"question": "Which?", "subject": "some_subject", "choices": ["w", "x", "y", "z"], "answer": 2})"},
      {"a.jsonl",
       R"({"question": "Which?", "subject": "some_subject", "options": ["w", "x", "y", "z"], "answer": "C"})"},
      {"a.jsonl",
       R"({"question": "Which?", "subject": "some_subject", "A": "w", "B": "x", "C": "y", "D": "z", "answer": "c"})"},
  };
  for (const auto& [name, text] : files) {
    SCOPED_TRACE(text);
    const auto documents = Read(name, text);
    ASSERT_EQ(documents.size(), 1U);
    ASSERT_EQ(documents[0].messages.size(), 2U);
    EXPECT_EQ(documents[0].messages[0].role, "user");
    EXPECT_EQ(documents[0].messages[0].content,
              "Answer this multiple-choice question about some subject with the letter and the "
              "text of the right choice.\n\nWhich?\n\nA. w\nB. x\nC. y\nD. z");
    EXPECT_EQ(documents[0].messages[1].role, "assistant");
    EXPECT_EQ(documents[0].messages[1].content, "C. y");
  }
  // The original files have no header and no subject.
  const auto original = Read("a.csv", "Which?,w,x,y,z,B\nWhat?,1,2,3,4,D\n");
  ASSERT_EQ(original.size(), 2U);
  EXPECT_EQ(original[0].messages[1].content, "B. x");
  EXPECT_NE(original[1].where.find("a.csv:2"), std::string::npos);
}

TEST(Documents, QuestionFaults) {
  const std::string header = "question,A,B,C,D,answer\n";
  OSCAR_EXPECT_ERROR(Read("a.csv", header + "q,w,x,y,z,E\n"), ErrorCode::kFormat, "a.csv:2",
                     "answer", "'E'");
  OSCAR_EXPECT_ERROR(Read("a.csv", header + "q,w,x,y,z,4\n"), ErrorCode::kFormat, "'4'");
  OSCAR_EXPECT_ERROR(Read("a.csv", header + "q,w,x,y,z,A\nq,w,x,y,A\n"), ErrorCode::kFormat,
                     "a.csv:3", "expected 6 fields, found 5");
  OSCAR_EXPECT_ERROR(Read("a.csv", header + "q,w,,y,z,A\n"), ErrorCode::kFormat, "choice B");
  OSCAR_EXPECT_ERROR(Read("a.csv", header + ",w,x,y,z,A\n"), ErrorCode::kFormat, "question");
  OSCAR_EXPECT_ERROR(Read("a.csv", "x,y\n1,2\n"), ErrorCode::kFormat, "columns");
  OSCAR_EXPECT_ERROR(Read("a.csv", "question,A,a,B,C,D,answer\n"), ErrorCode::kFormat, "'a'");
  OSCAR_EXPECT_ERROR(Read("a.csv", header), ErrorCode::kData, "a.csv");
  OSCAR_EXPECT_ERROR(Read("a.csv", ""), ErrorCode::kData, "a.csv");
}

TEST(Documents, GpqaIsShuffledBySeedAndQuestion) {
  const std::string header =
      "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer "
      "3\n";
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += "id,Q" + std::to_string(i) + "?,right,w1,w2,w3\n";
  const auto documents = Read("a.csv", header + rows, 5);
  ASSERT_EQ(documents.size(), 40U);
  std::set<std::string> answers;
  for (const Document& document : documents) {
    const std::string& answer = document.messages[1].content;
    EXPECT_EQ(answer.substr(1), ". right");
    // The letter is the one before the right choice in the prompt.
    EXPECT_NE(document.messages[0].content.find("\n" + answer), std::string::npos);
    answers.insert(answer);
  }
  EXPECT_EQ(answers.size(), 4U) << "forty shuffles should reach every letter";
  // The same seed gives the same order, whatever rows stand around a question.
  EXPECT_EQ(Read("a.csv", header + "id,Q7?,right,w1,w2,w3\n", 5)[0].messages[0].content,
            documents[7].messages[0].content);
  const std::string line =
      R"({"Question": "Q7?", "Correct Answer": "right", "Incorrect Answer 1": "w1", )"
      R"("Incorrect Answer 2": "w2", "Incorrect Answer 3": "w3"})";
  const auto jsonl = Read("a.jsonl", line, 5);
  EXPECT_EQ(jsonl[0].messages[0].content, documents[7].messages[0].content);
  const auto other = Read("a.csv", header + rows, 6);
  int moved = 0;
  for (size_t i = 0; i < 40; ++i) {
    moved += other[i].messages[1].content != documents[i].messages[1].content ? 1 : 0;
  }
  EXPECT_GT(moved, 10);
}

// The project's own data sets load.
TEST(Documents, OwnDataSets) {
  const std::filesystem::path folder = std::filesystem::path(OSCAR_SOURCE_DIR) / "datasets";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".csv" && extension != ".txt") continue;
    const auto documents = ReadDocuments(entry.path(), 1);
    EXPECT_GE(documents.size(), 10U) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace oscar
