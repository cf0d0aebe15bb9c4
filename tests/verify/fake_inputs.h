// Small held-out traces and zoo entries for tests of verification.
#pragma once

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/hadamard.h"
#include "oscar/verify/verify_traces.h"
#include "oscar/zoo/entry.h"
#include "support/golden.h"
#include "trace/fake_trace.h"

namespace oscar::test {

inline constexpr Windows kSmallWindows{4, 8};

inline LayerShape VerifyShape() {
  return {.q_heads = 4,
          .kv_heads = 2,
          .k_dim = 16,
          .v_dim = 8,
          .hidden = 12,
          .softmax_scale = 0.25,
          .window = 0,
          .rope = "full"};
}

// Keys have one large channel, as real ones do: rotations pay off.
inline LayerCapture VerifyLayer(int layer, const TraceHeader& header, bool o_proj,
                                int64_t sliding_window = 0) {
  LayerShape shape = VerifyShape();
  shape.window = sliding_window;
  Random random(DeriveSeed(static_cast<uint64_t>(header.manifest.At("seed").AsInt()),
                           "layer " + std::to_string(layer)));
  int64_t tokens = 0, kept = 0;
  for (const TraceSequence& s : header.sequences) {
    tokens += s.length;
    kept += s.has_rows ? s.length : 0;
  }
  LayerCapture capture;
  capture.layer = layer;
  capture.q = FakeRows(tokens * shape.q_heads * shape.k_dim, random);
  capture.k = FakeRows(tokens * shape.kv_heads * shape.k_dim, random);
  capture.v = FakeRows(tokens * shape.kv_heads * shape.v_dim, random);
  for (size_t i = 3; i < capture.k.size(); i += 16) {
    capture.k[i] = ToBFloat16(8 + ToFloat(capture.k[i]));
  }
  capture.moments.shape = shape;
  capture.moments.count = static_cast<uint64_t>(tokens);
  capture.moments.sums[Moment::kKk] = SumOfProducts(capture.k, shape.kv_heads, shape.k_dim);
  capture.q.resize(static_cast<size_t>(kept * shape.q_heads * shape.k_dim));
  capture.k.resize(static_cast<size_t>(kept * shape.kv_heads * shape.k_dim));
  capture.v.resize(static_cast<size_t>(kept * shape.kv_heads * shape.v_dim));
  if (o_proj) capture.o_proj = FakeRows(shape.hidden * shape.q_heads * shape.v_dim, random);
  return capture;
}

inline std::filesystem::path WriteVerifyTrace(const std::filesystem::path& path,
                                              const TraceHeader& header, bool o_proj = true,
                                              const std::map<int, int64_t>& sliding_windows = {}) {
  TraceWriter writer(path, header, false, false);
  for (const int layer : header.layers) {
    const auto window = sliding_windows.find(layer);
    writer.WriteLayer(
        VerifyLayer(layer, header, o_proj, window == sliding_windows.end() ? 0 : window->second));
  }
  writer.Finish();
  return path;
}

inline ZooFile HadamardFile(const std::string& objective, int64_t dim,
                            const std::vector<int>& layers) {
  ZooFile file;
  file.objective = objective;
  file.source_grouping = "layer";
  const std::vector<double> h = HadamardMatrix(dim);
  for (const int layer : layers) {
    ZooLayer& entry = file.layers[layer];
    entry.dim = dim;
    entry.rotation.assign(h.begin(), h.end());
    entry.eigenvalues.assign(static_cast<size_t>(dim), 1.0F);
  }
  return file;
}

inline Value VerifyManifest(const TraceHeader& calibration) {
  Value manifest;
  manifest["model"] = Value::Object{{"id", "fake"}, {"config_hash", "c0ffee"}};
  Value::Array sequences;
  for (const TraceSequence& s : calibration.sequences) sequences.push_back(s.sha256);
  Value::Array ngrams;
  for (const uint64_t hash : calibration.ngram_hashes) ngrams.push_back(hash);
  manifest["calibration"] =
      Value::Object{{"sequences", std::move(sequences)}, {"ngrams", std::move(ngrams)}};
  return manifest;
}

struct EntryParts {
  ZooFile key, value;
  Value manifest;
};

inline EntryParts GoodEntry(const std::vector<int>& layers, const TraceHeader& calibration) {
  return {HadamardFile("qqt_r_h_pbr", 16, layers), HadamardFile("sst_r_h_pbr", 8, layers),
          VerifyManifest(calibration)};
}

inline std::filesystem::path WriteVerifyEntry(const std::filesystem::path& folder,
                                              const EntryParts& parts) {
  WriteZooEntry(folder, parts.key, parts.value, "k_rotation_qqt_r_h_pbr.pt",
                "v_rotation_sst_r_h_pbr.pt", parts.manifest, false);
  return folder;
}

// A context without a terminal.
struct QuietContext {
  NullProgress progress;
  CancelToken cancel;
  RunContext context{&progress, &cancel, 2};
};

}  // namespace oscar::test
