# Interface targets that carry flags, and the two helpers that define modules and tests.

add_library(oscar_warnings INTERFACE)
target_compile_options(oscar_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wsign-conversion;-Wold-style-cast>
    # GCC 12 reports std::string's own operator+ (GCC bug 105651).
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)

add_library(oscar_sanitizers INTERFACE)
if(OSCAR_SANITIZE STREQUAL "address-undefined")
  target_compile_options(oscar_sanitizers INTERFACE
      -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(oscar_sanitizers INTERFACE -fsanitize=address,undefined)
elseif(OSCAR_SANITIZE STREQUAL "thread")
  target_compile_options(oscar_sanitizers INTERFACE -fsanitize=thread)
  target_link_options(oscar_sanitizers INTERFACE -fsanitize=thread)
elseif(NOT OSCAR_SANITIZE STREQUAL "none")
  message(FATAL_ERROR "OSCAR_SANITIZE=${OSCAR_SANITIZE}: expected none, address-undefined or thread")
endif()

# oscar_add_module(<module> SOURCES a.cc ... HEADERS a.h ... [PUBLIC lib ...] [PRIVATE lib ...])
# One static library oscar_<module> (alias oscar::<module>) from files of lib/oscar/<module>.
# PUBLIC libraries appear in the module's headers, PRIVATE ones only in its sources.
function(oscar_add_module module)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "oscar_add_module(${module}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_library(oscar_${module} STATIC ${arg_SOURCES})
  add_library(oscar::${module} ALIAS oscar_${module})
  target_sources(oscar_${module} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/lib"
                 FILES ${arg_HEADERS})
  target_compile_features(oscar_${module} PUBLIC cxx_std_20)
  set_target_properties(oscar_${module} PROPERTIES CXX_EXTENSIONS OFF EXPORT_NAME ${module})
  # System includes of third parties must not trip our warnings.
  target_link_libraries(oscar_${module} PUBLIC ${arg_PUBLIC}
                        PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:oscar_warnings>
                                $<BUILD_INTERFACE:oscar_sanitizers>)
endfunction()

# oscar_add_test(<name> SOURCES a_test.cc ... LIBRARIES lib ... [LABELS label ...] [TIMEOUT s] [WHOLE])
# One executable of GoogleTest cases, each a ctest case named <name>.<suite>.<case>; with WHOLE one
# ctest case for all of them, for cases that share costly inputs.
function(oscar_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WHOLE" "TIMEOUT" "SOURCES;LIBRARIES;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE
      OSCAR_SOURCE_DIR="${PROJECT_SOURCE_DIR}" OSCAR_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main
                        oscar_warnings oscar_sanitizers)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if(arg_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
    return()
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}." TEST_LIST cases
                       PROPERTIES TIMEOUT ${arg_TIMEOUT})
  # PROPERTIES cannot hold a list, and there may be several labels: they are set once the names of
  # the cases are known.
  set(labels_file "${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake")
  file(CONFIGURE OUTPUT "${labels_file}" @ONLY CONTENT
       "if(cases)\n  set_tests_properties(\${cases} PROPERTIES LABELS \"@arg_LABELS@\")\nendif()\nset(cases)\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${labels_file}")
endfunction()

# oscar_add_program(<program> LIBRARIES lib ...): apps/<program with underscores>/{main,options}.cc
function(oscar_add_program program)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
  string(REPLACE "-" "_" folder "${program}")
  add_executable(${program} ${folder}/main.cc ${folder}/options.cc)
  target_compile_features(${program} PRIVATE cxx_std_20)
  target_include_directories(${program} PRIVATE "${PROJECT_SOURCE_DIR}/apps")
  target_link_libraries(${program} PRIVATE oscar::cli ${arg_LIBRARIES} oscar_warnings
                        oscar_sanitizers)
  if(LibTorch_CPU_LIBRARY)  # an installed program finds LibTorch where it was at build time
    get_filename_component(torch_folder "${LibTorch_CPU_LIBRARY}" DIRECTORY)
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "${torch_folder}")
  endif()
  set_property(GLOBAL APPEND PROPERTY OSCAR_PROGRAMS ${program})
endfunction()
