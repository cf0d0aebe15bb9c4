// How a cache is laid out while it is verified: as the user says, else as the entries were made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/quant/methods.h"
#include "oscar/verify/belonging.h"

namespace oscar {

// What the user asked for; nullopt: as the manifests of the entries say.
struct ServedSettings {
  std::optional<int64_t> sink, recent, flush;  // tokens
  std::optional<int64_t> group_size;           // channels; 0: the whole head
  std::optional<ScaleType> scale_type;
};

// Sets windows, group size and scale type of `method`: what was asked for, else what the manifests
// say, else what `method` holds. An entry that was made for something else than what is measured is
// named in `notes`. Throws Error(kUsage) when manifests differ in a setting that was not asked for,
// Error(kFormat) for a manifest value of a wrong kind. Windows that are off need no agreement.
void ApplyServed(const ServedSettings& asked, const EntrySet& entries, MethodSettings& method,
                 std::vector<std::string>& notes);

}  // namespace oscar
