#include "oscar/h5/handle.h"

#include <fmt/format.h>

#include "oscar/h5/internal.h"

namespace oscar {

H5Handle::~H5Handle() {
  if (id_ < 0 || close_ == nullptr) return;
  const h5::Session session;
  close_(id_);
}

namespace h5 {
namespace {

std::recursive_mutex& Lock() {
  static std::recursive_mutex lock;
  return lock;
}

// HDF5 puts the time, addresses and counts of bytes into descriptions of failed system calls, over
// several lines. What helps is what stands before them and the system's own message.
std::string Brief(std::string_view description) {
  constexpr std::string_view kMark = "error message = '";
  const size_t mark = description.find(kMark);
  if (mark == std::string_view::npos) return std::string(description);
  const std::string_view message = description.substr(mark + kMark.size());
  return fmt::format("{}: {}", description.substr(0, description.find_first_of(":,")),
                     message.substr(0, message.find('\'')));
}

herr_t Collect(unsigned, const H5E_error2_t* error, void* out) {
  if (error->desc != nullptr && *error->desc != '\0') {
    static_cast<std::vector<std::string>*>(out)->push_back(Brief(error->desc));
  }
  return 0;
}

}  // namespace

Session::Session() : lock_(Lock()) {
  // A file whose last bytes could not be written cannot be closed either; HDF5 keeps it, and its
  // clean-up at exit would try again and crash. Everything else is closed by its H5Handle, so the
  // clean-up has nothing to do. Must come before any other call.
  static const herr_t no_clean_up = H5dont_atexit();
  static_cast<void>(no_clean_up);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

void Fail(ErrorCode code, std::string_view action, std::string_view where) {
  // Innermost cause first in the walk; the cause and the outermost call are what a user can use.
  std::vector<std::string> stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, Collect, &stack);
  H5Eclear2(H5E_DEFAULT);
  std::string reason = "HDF5 gives no reason";
  if (!stack.empty()) reason = stack.front();
  if (stack.size() > 1) reason = fmt::format("{} ({})", stack.front(), stack.back());
  throw Error(code, fmt::format("cannot {} {}: {}", action, where, reason));
}

H5Handle Own(hid_t id, H5Handle::Close close, ErrorCode code, std::string_view action,
             std::string_view where) {
  return {Check(id, code, action, where), close};
}

int CloseFile(int64_t id) { return H5Fclose(id); }
int CloseGroup(int64_t id) { return H5Gclose(id); }
int CloseDataset(int64_t id) { return H5Dclose(id); }
int CloseType(int64_t id) { return H5Tclose(id); }
int CloseSpace(int64_t id) { return H5Sclose(id); }
int CloseAttribute(int64_t id) { return H5Aclose(id); }
int CloseProperties(int64_t id) { return H5Pclose(id); }

}  // namespace h5
}  // namespace oscar
