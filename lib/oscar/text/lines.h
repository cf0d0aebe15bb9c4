// Lines of text files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct Line {
  int64_t number = 0;  // from 1
  std::string_view text;
};

// Lines without their LF or CRLF. The views point into `text`.
std::vector<Line> SplitLines(std::string_view text);

// A text file without its byte order mark. Throws Error(kIo), and Error(kFormat) naming the line
// for ill-formed UTF-8.
std::string ReadUtf8File(const std::filesystem::path& file);

}  // namespace oscar
