// Multiple-choice questions as conversations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/text/csv.h"
#include "oscar/text/dataset.h"

namespace oscar {

struct Question {
  std::string text;
  std::string subject;  // may be empty
  std::vector<std::string> choices;
  size_t answer = 0;
};

// The question, its lettered choices and the instruction as user message; letter and text of the
// answer as assistant message.
std::vector<ChatMessage> QuestionMessages(const Question& question);

// Rows of a CSV file, its header included. MMLU columns: question, A, B, C, D, answer (a letter or
// an index from 0), optionally subject, in any case; or no header and exactly these six columns.
// GPQA columns: Question, Correct Answer, Incorrect Answer 1..3; other columns are ignored.
std::vector<Document> DocumentsOfCsv(const std::vector<CsvRecord>& records, const std::string& file,
                                     uint64_t seed);

// Whether an object has the members of a question; and the question itself. `where` names file and
// line in messages.
bool IsQuestion(const Value& object);
Question QuestionOfObject(const Value& object, const std::string& where, uint64_t seed);

}  // namespace oscar
