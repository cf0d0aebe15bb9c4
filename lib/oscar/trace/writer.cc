#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/trace/layout.h"
#include "oscar/trace/part_folder.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr size_t kListedDifferences = 8;

// Times and host never reach a file: equal runs give equal bytes.
TraceHeader WithoutVolatile(TraceHeader header) {
  if (header.manifest.Find("volatile") != nullptr)
    header.manifest.MutableObject().erase("volatile");
  return header;
}

std::vector<std::string> Differences(const TraceHeader& found, const TraceHeader& wanted) {
  std::vector<std::string> list =
      DescribeDifferences(found.manifest, wanted.manifest, kListedDifferences);
  if (found.layers != wanted.layers) {
    list.push_back(fmt::format("layers: {} != {}", found.layers, wanted.layers));
  }
  if (found.sequences.size() != wanted.sequences.size()) {
    list.push_back(fmt::format("number of sequences: {} != {}", found.sequences.size(),
                               wanted.sequences.size()));
    return list;
  }
  for (size_t i = 0; i < found.sequences.size() && list.size() < kListedDifferences; ++i) {
    const TraceSequence& a = found.sequences[i];
    const TraceSequence& b = wanted.sequences[i];
    if (a.length != b.length || a.sha256 != b.sha256) {
      list.push_back(fmt::format("sequence {}: other tokens", i));
    } else if (a.complete != b.complete || a.has_rows != b.has_rows) {
      list.push_back(fmt::format("sequence {}: complete and rows flags", i));
    }
  }
  return list;
}

// What to do about it: some of what differs was given by nobody, and some cannot be given at all.
std::string HintFor(const Value& found, const Value& wanted) {
  const auto differs = [&](const char* key) {
    const Value* a = found.Find(key);
    const Value* b = wanted.Find(key);
    return a != nullptr && (b == nullptr || *a != *b);
  };
  for (const char* key : {"tool", "version", "git_revision", "compiler", "libraries"}) {
    if (differs(key))
      return "only the build that began a run can continue it: start over with --force";
  }
  const Value* threads = found.Find("threads");
  if (differs("threads") && threads->is_int()) {
    return fmt::format(
        "give --threads {} and otherwise the options of the first run, or start over with --force",
        threads->AsInt());
  }
  return "give the options of the first run, or start over with --force";
}

[[noreturn]] void ThrowDifferent(const fs::path& what, const std::vector<std::string>& differences,
                                 const std::string& hint) {
  throw Error(ErrorCode::kMismatch,
              fmt::format("{} belongs to another run (there != here): {}", what.string(),
                          fmt::join(differences, "; ")),
              hint);
}

}  // namespace

struct TraceWriter::Impl {
  Impl(fs::path trace, TraceHeader h)
      : path(std::move(trace)), header(WithoutVolatile(std::move(h))), part(path) {}

  void Start(bool resume, bool force);
  bool IsFinished(bool force) const;
  void StartOver();
  void Continue();
  void Assemble(const fs::path& temporary) const;

  fs::path path;
  TraceHeader header;
  PartFolder part;
  std::set<int> done;
  bool finished = false;  // the trace itself is already there
};

void TraceWriter::Impl::Start(bool resume, bool force) {
  const fs::path folder = path.parent_path();
  if (!folder.empty() && !fs::is_directory(folder)) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: there is no folder {}", path.string(),
                                            folder.string()));
  }
  if (fs::is_directory(path)) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: it is a folder", path.string()));
  }
  part.RefuseForeign();
  if (fs::exists(path)) {
    if (resume && IsFinished(force)) {
      finished = true;
      done.insert(header.layers.begin(), header.layers.end());
      return;
    }
    if (!force) {
      throw Error(ErrorCode::kIo, fmt::format("{} exists already", path.string()),
                  "replace it with --force, or choose another --out");
    }
  }
  if (part.HasHeader() && !resume && !force) {
    throw Error(ErrorCode::kIo, fmt::format("{} holds an unfinished run", part.path().string()),
                "continue it with --resume, or start over with --force");
  }
  part.Claim();
  if (!part.HasHeader() || !resume) return StartOver();
  const TraceHeader found = ReadHeader(H5File::Open(part.HeaderFile()));
  const std::vector<std::string> differences = Differences(found, header);
  if (differences.empty()) return Continue();
  if (!force) ThrowDifferent(part.path(), differences, HintFor(found.manifest, header.manifest));
  StartOver();
}

// Whether the finished trace at `path` is what this run would make. A kill after the final rename
// leaves such a file, with or without its working folder.
bool TraceWriter::Impl::IsFinished(bool force) const {
  const TraceReader reader(path);
  const TraceHeader& found = reader.header();
  const std::vector<std::string> differences = Differences(found, header);
  if (!differences.empty() && !force) {
    ThrowDifferent(path, differences, HintFor(found.manifest, header.manifest));
  }
  return differences.empty();
}

void TraceWriter::Impl::StartOver() {
  part.Clear();
  const fs::path temporary = TemporarySibling(part.HeaderFile());
  TemporaryGuard guard(temporary);
  H5File file = H5File::Create(temporary);
  WriteHeader(file, header);
  file.Close();
  Publish(temporary, part.HeaderFile(), false);
  guard.Keep();
}

void TraceWriter::Impl::Continue() {
  part.RemoveTemporaries();
  for (const int layer : header.layers) {
    const fs::path file = part.LayerFile(layer);
    if (!fs::exists(file)) continue;
    ReadLayerInfo(H5File::Open(file), header);  // damage shows now, not hours later
    done.insert(layer);
  }
}

void TraceWriter::Impl::Assemble(const fs::path& temporary) const {
  H5File file = H5File::Create(temporary);
  WriteHeader(file, header);
  {
    // Closed before the file, so that closing the file is what flushes it and can fail.
    H5Group layers = file.CreateGroup("layers");
    for (const int layer : header.layers) {
      const H5File from = H5File::Open(part.LayerFile(layer));
      const LayerInfo info = ReadLayerInfo(from, header);
      H5Group to = layers.CreateGroup(std::to_string(layer));
      CopyLayerGroup(from, info, to);
    }
  }
  file.Close();
}

TraceWriter::TraceWriter(fs::path path, TraceHeader header, bool resume, bool force) {
  ValidateHeader(header, path.string());
  impl_ = std::make_unique<Impl>(std::move(path), std::move(header));
  impl_->Start(resume, force);
}

TraceWriter::~TraceWriter() = default;

const fs::path& TraceWriter::part_folder() const { return impl_->part.path(); }

bool TraceWriter::HasLayer(int layer) const { return impl_->done.contains(layer); }

bool TraceWriter::finished() const { return impl_->finished; }

void TraceWriter::WriteLayer(const LayerCapture& layer) {
  const std::vector<int>& wanted = impl_->header.layers;
  OSCAR_CHECK(std::find(wanted.begin(), wanted.end(), layer.layer) != wanted.end());
  OSCAR_CHECK(!impl_->finished);
  ValidateCapture(layer, impl_->header);
  const fs::path target = impl_->part.LayerFile(layer.layer);
  const fs::path temporary = TemporarySibling(target);
  TemporaryGuard guard(temporary);
  H5File file = H5File::Create(temporary);
  WriteLayerGroup(file, layer, RowTokens(impl_->header));
  file.Close();
  Publish(temporary, target, false);
  guard.Keep();
  impl_->done.insert(layer.layer);
}

std::optional<fs::path> TraceWriter::state_file() const {
  const fs::path file = impl_->part.StateFile();
  if (impl_->finished || !fs::exists(file)) return std::nullopt;
  return file;
}

void TraceWriter::WriteState(const std::function<void(const fs::path&)>& write) {
  OSCAR_CHECK(!impl_->finished);
  const fs::path temporary = TemporarySibling(impl_->part.StateFile());
  TemporaryGuard guard(temporary);
  write(temporary);
  Publish(temporary, impl_->part.StateFile(), false);
  guard.Keep();
}

void TraceWriter::Finish() {
  if (!impl_->finished) {
    std::vector<int> missing;
    for (const int layer : impl_->header.layers) {
      if (!HasLayer(layer)) missing.push_back(layer);
    }
    if (!missing.empty()) {
      throw Error(ErrorCode::kData,
                  fmt::format("{}: layers {} were not written", impl_->path.string(), missing));
    }
    const fs::path temporary = TemporarySibling(impl_->part.path() / "assembled.h5");
    TemporaryGuard guard(temporary);
    impl_->Assemble(temporary);
    Publish(temporary, impl_->path, false);
    guard.Keep();
    impl_->finished = true;
  }
  impl_->part.Remove();
}

}  // namespace oscar
