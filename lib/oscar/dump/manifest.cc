#include "oscar/dump/manifest.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "oscar/core/hash.h"
#include "oscar/core/version.h"
#include "oscar/h5/file.h"
#include "oscar/model/backend.h"
#include "oscar/stats/moments.h"
#include "oscar/weights/fingerprint.h"

namespace oscar {
void DescribeRun(const DumpOptions& options, const RunContext& context, TraceHeader& header) {
  Value& m = header.manifest;
  m["tool"] = "oscar-dump";
  m["version"] = Version();
  m["git_revision"] = GitRevision();
  m["compiler"] = CompilerName();
  m["libraries"]["hdf5"] = H5LibraryVersion();
  m["libraries"]["libtorch"] = LibTorchVersion();
  m["threads"] = context.threads;
  m["seed"] = options.seed;
  m["bos"] = "none";
  m["capture_point"] = "post_rope";
  m["cached_prefix_len"] = 0;
  Value::Array moments;
  for (const Moment id : ParseMomentList(options.moments)) moments.push_back(InfoOf(id).name);
  m["moments"] = std::move(moments);
  int64_t tokens = 0;
  int64_t row_tokens = 0;
  for (const TraceSequence& s : header.sequences) {
    tokens += s.length;
    row_tokens += s.has_rows ? s.length : 0;
  }
  m["tokens"] = tokens;
  m["rows_tokens"] = row_tokens;
}

void DescribeModel(const ModelWeights& model, Value& manifest) {
  manifest["model_id"] = model.model_id();
  manifest["architecture"] = model.config().architecture;
  manifest["config_hash"] = model.config_hash();
  manifest["weights_fingerprint"] = WeightsFingerprint(model);
  manifest["rope"] = model.config().ShapeOfLayer(0).rope;
}

Value DescribeMoment(double seconds) {
  Value value;
  value["seconds"] = seconds;
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  value["finished"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) value["host"] = std::string_view(host);
  return value;
}

}  // namespace oscar
