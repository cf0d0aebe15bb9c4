// Comma-separated values as RFC 4180 describes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct CsvRecord {
  int64_t line = 0;  // where the record starts, from 1
  std::vector<std::string> fields;
};

// Fields are separated by commas; a field in double quotes may hold commas, line breaks and,
// doubled, quotes. Records end with LF, CRLF or the end of the text; empty lines are left out.
// Throws Error(kFormat) with `where` and the line for a quote that is not closed, or for text
// before or after a quoted part of a field.
std::vector<CsvRecord> ParseCsv(std::string_view text, const std::string& where);

}  // namespace oscar
