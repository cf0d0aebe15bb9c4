#include "oscar/text/questions.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/weights/message.h"

namespace oscar {
namespace {

constexpr size_t kMostChoices = 26;
constexpr const char* kIncorrect[] = {"Incorrect Answer 1", "Incorrect Answer 2",
                                      "Incorrect Answer 3"};

[[noreturn]] void Wrong(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kFormat, where + ": " + what);
}

std::string Trimmed(const std::string& text) {
  constexpr char kBlank[] = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

char Letter(size_t choice) { return static_cast<char>('A' + choice); }

// A letter, or an index from 0.
size_t AnswerIndex(const std::string& text, size_t choices, const std::string& where) {
  const std::string answer = Trimmed(text);
  if (answer.size() == 1 && std::isalpha(static_cast<unsigned char>(answer[0])) != 0) {
    const auto index =
        static_cast<size_t>(std::toupper(static_cast<unsigned char>(answer[0])) - 'A');
    if (index < choices) return index;
  }
  if (!answer.empty() && answer.size() <= 2 &&
      answer.find_first_not_of("0123456789") == std::string::npos) {
    const auto index = static_cast<size_t>(std::stoi(answer));
    if (index < choices) return index;
  }
  Wrong(where, Message("field 'answer': expected a letter from A to ", Letter(choices - 1),
                       " or an index from 0 to ", choices - 1, ", found ", Quoted(text)));
}

void CheckQuestion(const Question& question, const std::string& where) {
  if (question.text.empty()) Wrong(where, "field 'question' is empty");
  if (question.choices.size() < 2 || question.choices.size() > kMostChoices) {
    Wrong(where, Message("a question needs 2 to ", kMostChoices, " choices, found ",
                         question.choices.size()));
  }
  for (size_t i = 0; i < question.choices.size(); ++i) {
    if (question.choices[i].empty()) Wrong(where, Message("choice ", Letter(i), " is empty"));
  }
}

// GPQA lists the correct answer first: the order is shuffled by a seed that depends on the question
// only, so that other rows of the file do not matter.
Question Shuffled(std::string text, std::vector<std::string> choices, uint64_t seed,
                  const std::string& where) {
  Question question;
  question.text = std::move(text);
  std::vector<size_t> order(choices.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Random random(DeriveSeed(seed, question.text));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  for (size_t i = 0; i < order.size(); ++i) {
    question.choices.push_back(choices[order[i]]);
    if (order[i] == 0) question.answer = i;
  }
  CheckQuestion(question, where);
  return question;
}

// Column name -> index.
using Columns = std::map<std::string, size_t>;

Columns ReadHeader(const CsvRecord& header, const std::string& file, bool lower) {
  Columns columns;
  for (size_t i = 0; i < header.fields.size(); ++i) {
    const std::string name = Trimmed(header.fields[i]);
    if (!columns.emplace(lower ? Lower(name) : name, i).second && !name.empty()) {
      Wrong(Message(file, ":", header.line), "two columns are called " + Quoted(name));
    }
  }
  return columns;
}

bool HasAll(const Columns& columns, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return columns.contains(name); });
}

// The layout of the original files: question, four choices, answer letter.
bool LooksHeaderless(const CsvRecord& record) {
  if (record.fields.size() != 6) return false;
  const std::string answer = Trimmed(record.fields[5]);
  return answer.size() == 1 && answer[0] >= 'A' && answer[0] <= 'D';
}

Question MmluRow(const CsvRecord& record, const Columns& columns, const std::string& where) {
  const auto field = [&](const char* name) { return Trimmed(record.fields[columns.at(name)]); };
  Question question;
  question.text = field("question");
  for (const char* name : {"a", "b", "c", "d"}) question.choices.push_back(field(name));
  if (columns.contains("subject")) question.subject = field("subject");
  CheckQuestion(question, where);
  question.answer = AnswerIndex(field("answer"), question.choices.size(), where);
  return question;
}

Question GpqaRow(const CsvRecord& record, const Columns& columns, uint64_t seed,
                 const std::string& where) {
  const auto field = [&](const char* name) { return Trimmed(record.fields[columns.at(name)]); };
  std::vector<std::string> choices = {field("Correct Answer")};
  for (const char* name : kIncorrect) choices.push_back(field(name));
  return Shuffled(field("Question"), std::move(choices), seed, where);
}

std::string TextMember(const Value& object, const char* name, const std::string& where) {
  const Value* value = object.Find(name);
  if (value == nullptr || !value->is_string()) {
    Wrong(where, Message("field '", name, "' is missing or no text"));
  }
  return Trimmed(value->AsString());
}

// "choices" or "options", or the members A, B, C, D.
std::vector<std::string> ChoicesOf(const Value& object, const std::string& where) {
  std::vector<std::string> choices;
  for (const char* name : {"choices", "options"}) {
    const Value* list = object.Find(name);
    if (list == nullptr) continue;
    if (!list->is_array()) Wrong(where, Message("field '", name, "' is no list"));
    for (const Value& item : list->AsArray()) {
      if (!item.is_string())
        Wrong(where, Message("field '", name, "' holds something else than texts"));
      choices.push_back(Trimmed(item.AsString()));
    }
    return choices;
  }
  for (const char* name : {"A", "B", "C", "D"}) choices.push_back(TextMember(object, name, where));
  return choices;
}

}  // namespace

std::vector<ChatMessage> QuestionMessages(const Question& question) {
  std::string subject = question.subject;
  std::replace(subject.begin(), subject.end(), '_', ' ');
  std::string prompt = "Answer this multiple-choice question";
  if (!subject.empty()) prompt += " about " + subject;
  prompt += " with the letter and the text of the right choice.\n\n" + question.text + "\n";
  for (size_t i = 0; i < question.choices.size(); ++i) {
    prompt += Message("\n", Letter(i), ". ", question.choices[i]);
  }
  return {{"user", std::move(prompt)},
          {"assistant", Message(Letter(question.answer), ". ", question.choices[question.answer])}};
}

std::vector<Document> DocumentsOfCsv(const std::vector<CsvRecord>& records, const std::string& file,
                                     uint64_t seed) {
  if (records.empty()) throw Error(ErrorCode::kData, file + " is empty");
  Columns columns = ReadHeader(records[0], file, false);
  const bool gpqa =
      HasAll(columns, {"Question", "Correct Answer", kIncorrect[0], kIncorrect[1], kIncorrect[2]});
  size_t first = 1;
  if (!gpqa) {
    columns = ReadHeader(records[0], file, true);
    if (!HasAll(columns, {"question", "a", "b", "c", "d", "answer"})) {
      if (!LooksHeaderless(records[0])) {
        throw Error(ErrorCode::kFormat,
                    Message(file, ":", records[0].line, ": the columns are those of no known set"),
                    "expected question,A,B,C,D,answer or Question,Correct Answer,Incorrect Answer "
                    "1..3");
      }
      columns = {{"question", 0}, {"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}, {"answer", 5}};
      first = 0;
    }
  }
  std::vector<Document> documents;
  for (size_t i = first; i < records.size(); ++i) {
    const CsvRecord& record = records[i];
    const std::string where = Message(file, ":", record.line);
    if (record.fields.size() != records[0].fields.size()) {
      Wrong(where, Message("expected ", records[0].fields.size(), " fields, found ",
                           record.fields.size()));
    }
    const Question question =
        gpqa ? GpqaRow(record, columns, seed, where) : MmluRow(record, columns, where);
    documents.push_back({"", QuestionMessages(question), where});
  }
  return documents;
}

bool IsQuestion(const Value& object) {
  return object.Find("question") != nullptr || object.Find("Question") != nullptr;
}

Question QuestionOfObject(const Value& object, const std::string& where, uint64_t seed) {
  if (object.Find("Question") != nullptr) {
    std::vector<std::string> choices = {TextMember(object, "Correct Answer", where)};
    for (const char* name : kIncorrect) choices.push_back(TextMember(object, name, where));
    return Shuffled(TextMember(object, "Question", where), std::move(choices), seed, where);
  }
  Question question;
  question.text = TextMember(object, "question", where);
  question.choices = ChoicesOf(object, where);
  if (object.Find("subject") != nullptr) question.subject = TextMember(object, "subject", where);
  CheckQuestion(question, where);
  const Value* answer = object.Find("answer");
  if (answer == nullptr) Wrong(where, "field 'answer' is missing");
  const std::string text = answer->is_string() ? answer->AsString() : answer->ToJson();
  question.answer = AnswerIndex(text, question.choices.size(), where);
  return question;
}

}  // namespace oscar
