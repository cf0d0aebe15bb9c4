# LibTorch 2.4 or later, CPU part: target LibTorch::LibTorch (global). TorchConfig.cmake is not
# used: it insists on a CUDA toolkit for a CUDA build of LibTorch even when only the CPU is used,
# and it overwrites the CUDA flags of the project.
#
# Looks in CMAKE_PREFIX_PATH: the folder that holds include/ and lib/ (an unpacked LibTorch archive
# or the folder `torch` of the Python package), or torch.utils.cmake_prefix_path.
#
#   LibTorch_USE_CUDA   set before find_package: link torch_cuda too, for work on a CUDA device
#   LibTorch_VERSION    version from torch/version.h
find_path(LibTorch_CONFIG_DIR TorchConfig.cmake PATH_SUFFIXES Torch share/cmake/Torch)
set(hints "")
if(LibTorch_CONFIG_DIR)
  get_filename_component(hints "${LibTorch_CONFIG_DIR}/../../.." ABSOLUTE)
endif()
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS "${hints}" PATH_SUFFIXES include)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS "${hints}" PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS "${hints}" PATH_SUFFIXES lib)
set(required LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR)
if(LibTorch_USE_CUDA)
  find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS "${hints}" PATH_SUFFIXES lib)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS "${hints}" PATH_SUFFIXES lib)
  list(APPEND required LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY)
endif()

set(LibTorch_VERSION "")
foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_INCLUDE_DIR}/${header}")
    file(STRINGS "${LibTorch_INCLUDE_DIR}/${header}" lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." LibTorch_VERSION)
  endif()
endforeach()

# libtorch_cpu.so of a CUDA build needs libcudart and libcupti when a program starts, which it finds
# by its own run path or the system's; they need not be there when the program is linked.
set(link_options "-Wl,--allow-shlib-undefined")
if(LibTorch_CPU_LIBRARY AND LibTorch_C10_LIBRARY)
  # Most Python packages before 2.7 were built with the old C++ ABI of std::string and do not link.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}" "${link_options}")
  check_cxx_source_compiles("
    #include <string>
    namespace at { std::string get_parallel_info(); }
    int main() { return at::get_parallel_info().empty() ? 1 : 0; }" LibTorch_CXX11_ABI)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(NOT LibTorch_CXX11_ABI)
    set(abi_message "${LibTorch_CPU_LIBRARY} does not link with this compiler: it needs a LibTorch \
built with the C++11 ABI (archives named cxx11-abi, or Python packages from 2.7 on)")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS ${required} LibTorch_CXX11_ABI
                                  VERSION_VAR LibTorch_VERSION
                                  REASON_FAILURE_MESSAGE "${abi_message}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # Global, since programs and tests elsewhere in the tree link it through oscar_model.
  add_library(LibTorch::LibTorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(LibTorch::LibTorch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "${LibTorch_CPU_LIBRARY};${LibTorch_C10_LIBRARY}"
      INTERFACE_LINK_OPTIONS "${link_options}")
  if(LibTorch_USE_CUDA)
    # Nothing refers to a symbol of torch_cuda: it registers its kernels when it is loaded.
    set_property(TARGET LibTorch::LibTorch APPEND PROPERTY INTERFACE_LINK_LIBRARIES
        "-Wl,--push-state,--no-as-needed,${LibTorch_CUDA_LIBRARY},${LibTorch_C10_CUDA_LIBRARY},--pop-state")
  endif()
endif()
