# Version and git revision in one generated source, rewritten only when they change.
find_package(Git QUIET)
set(OSCAR_GIT_REVISION "unknown")
if(Git_FOUND)
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" describe --always --dirty
                          --abbrev=12 --exclude "*"
                  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(OSCAR_GIT_REVISION "${revision}")
  endif()
  # A new commit or checkout makes the revision stale: configure again then.
  if(EXISTS "${PROJECT_SOURCE_DIR}/.git/HEAD")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/.git/HEAD")
  endif()
endif()
configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/version.cc.in"
               "${PROJECT_BINARY_DIR}/generated/version.cc" @ONLY)
