# utf8proc: target Utf8proc::Utf8proc.
find_path(Utf8proc_INCLUDE_DIR utf8proc.h)
find_library(Utf8proc_LIBRARY utf8proc)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8proc REQUIRED_VARS Utf8proc_LIBRARY Utf8proc_INCLUDE_DIR)
if(Utf8proc_FOUND AND NOT TARGET Utf8proc::Utf8proc)
  add_library(Utf8proc::Utf8proc INTERFACE IMPORTED)
  set_target_properties(Utf8proc::Utf8proc PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${Utf8proc_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "${Utf8proc_LIBRARY}")
endif()
