// The working folder `<trace>.part/` of a running dump, private to this module.
#pragma once

#include <filesystem>

#include "oscar/trace/trace.h"

namespace oscar {

class PartFolder {
 public:
  explicit PartFolder(const std::filesystem::path& trace);
  ~PartFolder();
  PartFolder(const PartFolder&) = delete;
  PartFolder& operator=(const PartFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path HeaderFile() const { return path_ / "header.h5"; }
  std::filesystem::path LayerFile(int layer) const;
  std::filesystem::path StateFile() const { return path_ / "state.bin"; }

  // A folder without a header holds nothing that could be continued: it is what a kill between
  // mkdir and the first rename, or in the middle of Remove(), leaves.
  bool HasHeader() const;

  // Throws Error(kIo) naming the first thing in the folder that no run of this program leaves
  // there, or when the path is no folder: it is somebody else's, and Clear() would destroy it.
  void RefuseForeign() const;
  // Creates the folder when it is missing and claims it for this process until the end. Throws
  // Error(kIo) when another process has it.
  void Claim();
  // Removes what killed writers left half written.
  void RemoveTemporaries();
  // Removes everything in the folder except the claim.
  void Clear();
  // Removes the folder, the header first.
  void Remove();

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace oscar
