// How a trace lies in HDF5: shared by the writer and the reader, private to this module.
// docs/formats/trace.md describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/h5/file.h"
#include "oscar/stats/capture.h"
#include "oscar/trace/trace.h"

namespace oscar {

// Tokens of all sequences / of those that keep rows.
int64_t TotalTokens(const TraceHeader& header);
int64_t RowTokens(const TraceHeader& header);

// Throws Error(kFormat) starting with `where` unless sequences follow one another without gaps,
// have positive lengths, keep rows only when complete, and either all or none carry a hash, and
// layers ascend.
void ValidateHeader(const TraceHeader& header, const std::string& where);

void WriteHeader(H5Group& root, const TraceHeader& header);
// Throws Error(kFormat / kUnsupported).
TraceHeader ReadHeader(const H5Group& root);

// What a layer's group says about itself, checked against the header and the datasets' shapes.
struct LayerInfo {
  LayerShape shape;
  uint64_t count = 0;
  std::vector<Moment> moments;
  std::string sst_qq_hash;
  bool has_o_proj = false;
};

// `capture` must have passed ValidateCapture.
void WriteLayerGroup(H5Group& group, const LayerCapture& capture, int64_t row_tokens);
// Throws Error(kFormat) naming the dataset.
LayerInfo ReadLayerInfo(const H5Group& group, const TraceHeader& header);
// Throws Error(kNumeric) naming layer group, moment and index when a sum is not finite.
LayerMoments ReadLayerMoments(const H5Group& group, const LayerInfo& info);
// Copies a layer's group, rows piece by piece.
void CopyLayerGroup(const H5Group& from, const LayerInfo& info, H5Group& to);

// Throws Error(kData / kNumeric) naming layer and moment when the layer saw another number of
// tokens than the header has, a sum is not finite, or queries, keys or values are all zero.
void ValidateCapture(const LayerCapture& capture, const TraceHeader& header);

}  // namespace oscar
