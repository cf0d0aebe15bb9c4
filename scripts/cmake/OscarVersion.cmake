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
  # A new commit or checkout makes the revision stale: configure again then. HEAD names the branch,
  # whose file or the log of HEAD changes with every commit.
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" symbolic-ref -q HEAD
                  OUTPUT_VARIABLE branch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  foreach(name HEAD logs/HEAD ${branch})
    execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" rev-parse --git-path ${name}
                    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    get_filename_component(path "${path}" ABSOLUTE BASE_DIR "${PROJECT_SOURCE_DIR}")
    if(status EQUAL 0 AND NOT IS_DIRECTORY "${path}" AND EXISTS "${path}")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
    endif()
  endforeach()
endif()
configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/version.cc.in"
               "${PROJECT_BINARY_DIR}/generated/version.cc" @ONLY)
