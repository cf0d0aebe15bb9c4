// Outputs that would destroy something.
#pragma once

#include <filesystem>
#include <vector>

namespace oscar {

// Refuses to replace what is neither a plain file nor a folder: a link, a pipe, a device. A path
// that does not exist passes. Throws Error(kIo).
void RefuseSpecialFile(const std::filesystem::path& output);

// Refuses special files, and to write over what the same run reads: an output that is an input, by
// whatever name or link, an output folder that holds an input, and an output that is a file of an
// input folder (traces and HTML pages there are nobody's input). Empty paths and paths that do not
// exist pass. Throws Error(kUsage) naming both.
void RefuseInputsAsOutputs(const std::vector<std::filesystem::path>& inputs,
                           const std::vector<std::filesystem::path>& outputs);

}  // namespace oscar
