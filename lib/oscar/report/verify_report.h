// The verification record (docs/formats/report.md) as text and as an HTML page.
#pragma once

#include <string>

#include "oscar/core/value.h"

namespace oscar {

// Table of schemes, gates, notes and verdict for a terminal. With `layers`, the tables by region
// and by layer as well, and what was compared for every gate instead of for failed ones only.
// Throws Error(kFormat) when the record is not `oscar.verify/1`.
std::string VerifyText(const Value& record, bool layers);

// One self-contained page: the same tables, and the layer curves as an inline SVG.
std::string VerifyHtml(const Value& record);

}  // namespace oscar
