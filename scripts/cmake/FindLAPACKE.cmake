# LAPACKE with a BLAS behind it: target LAPACKE::LAPACKE. Links a dsyevd call to make sure.
find_path(LAPACKE_INCLUDE_DIR lapacke.h PATH_SUFFIXES lapacke openblas)
find_library(LAPACKE_LIBRARY lapacke)
find_library(LAPACKE_BLAS_LIBRARY openblas)
# The thread count of OpenBLAS is set through its own header, which Debian keeps beside the others.
find_path(OSCAR_OPENBLAS_INCLUDE_DIR openblas_config.h
          PATH_SUFFIXES openblas-pthread openblas-openmp openblas-serial openblas)
include(CheckCXXSourceCompiles)
if(LAPACKE_INCLUDE_DIR AND LAPACKE_LIBRARY AND LAPACKE_BLAS_LIBRARY)
  set(CMAKE_REQUIRED_INCLUDES "${LAPACKE_INCLUDE_DIR}")
  set(CMAKE_REQUIRED_LIBRARIES "${LAPACKE_LIBRARY}" "${LAPACKE_BLAS_LIBRARY}")
  check_cxx_source_compiles("
    #include <lapacke.h>
    int main() { double a = 1, w = 0; return LAPACKE_dsyevd(LAPACK_ROW_MAJOR, 'V', 'U', 1, &a, 1, &w); }"
    LAPACKE_DSYEVD_LINKS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LAPACKE REQUIRED_VARS LAPACKE_LIBRARY LAPACKE_BLAS_LIBRARY
                                  LAPACKE_INCLUDE_DIR LAPACKE_DSYEVD_LINKS)
if(LAPACKE_FOUND AND NOT TARGET LAPACKE::LAPACKE)
  add_library(LAPACKE::LAPACKE INTERFACE IMPORTED)
  set_target_properties(LAPACKE::LAPACKE PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${LAPACKE_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "${LAPACKE_LIBRARY};${LAPACKE_BLAS_LIBRARY}")
endif()
