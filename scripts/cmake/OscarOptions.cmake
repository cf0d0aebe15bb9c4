# Build options. The help text says what ON does.
option(OSCAR_TORCH "Build oscar-dump and the model half of oscar-verify, which need LibTorch" ON)
option(OSCAR_CUDA "Build the CUDA kernels; without them the device functions say so and throw" OFF)
option(OSCAR_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(OSCAR_INSTALL "Create install rules" ${PROJECT_IS_TOP_LEVEL})
set(OSCAR_SANITIZE "none" CACHE STRING "Sanitizers: none, address-undefined or thread")
set_property(CACHE OSCAR_SANITIZE PROPERTY STRINGS none address-undefined thread)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(OSCAR_CCACHE ccache)
if(OSCAR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${OSCAR_CCACHE}")
endif()
