# Flags and helpers shared by all targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# In a batch, names in the unnamed namespace of a source are visible to the other sources of its target.
set(SIRTAKI_BATCH 1 CACHE STRING
  "Number of sources of a target compiled together: 1 rebuilds quickly after a change, 8 builds all in half the time")
set(SIRTAKI_BATCH_FLAGS "")
if(SIRTAKI_BATCH GREATER 1)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE "${SIRTAKI_BATCH}")
  # To g++ all sources of a batch but the batch itself are headers, which must not have names of their own.
  set(SIRTAKI_BATCH_FLAGS $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

option(SIRTAKI_WERROR "Warnings are errors: ON for development, OFF for untested compilers" ON)
set(SIRTAKI_STOP $<$<BOOL:${SIRTAKI_WERROR}>:-Werror>)

find_program(SIRTAKI_CCACHE ccache)
if(SIRTAKI_CCACHE)
  # Clones share one compiler cache: paths below the source folder are hashed as relative ones. A name that the compiler
  # writes into the program must be relative, too (-fmacro-prefix-map below).
  set(cached "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1)
  set(CMAKE_C_COMPILER_LAUNCHER ${cached} "${SIRTAKI_CCACHE}")
  if(SIRTAKI_TESTS OR SIRTAKI_SANITIZE)
    # ccache requires this sloppiness to cache sources that use precompiled headers.
    list(APPEND cached "CCACHE_SLOPPINESS=pch_defines,time_macros,$ENV{CCACHE_SLOPPINESS}")
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${cached} "${SIRTAKI_CCACHE}")
endif()
find_program(SIRTAKI_MOLD mold)
if(SIRTAKI_MOLD AND NOT CMAKE_CROSSCOMPILING)  # a cross compiler finds no linker but its own
  add_link_options(-fuse-ld=mold)
endif()

# __FILE__ is a path below the source folder: the same program and messages wherever the folder is.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)

add_library(sirtaki_flags INTERFACE)
target_include_directories(sirtaki_flags INTERFACE "${CMAKE_SOURCE_DIR}")
# -ffp-contract=off: the same bits on every target. -Wno-restrict: false positives of g++ 12 on "text" + std::string.
# No -Werror with sanitizers, since GCC reports false positives in instrumented code (-Wmaybe-uninitialized,
# -Warray-bounds). The release build compiles the same sources with -Werror.
target_compile_options(sirtaki_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wconversion -Wno-sign-conversion
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<IF:$<BOOL:${SIRTAKI_SANITIZE}>,-Wno-maybe-uninitialized,${SIRTAKI_STOP}>
  ${SIRTAKI_BATCH_FLAGS} -ffp-contract=off -fno-omit-frame-pointer)
if(SIRTAKI_SANITIZE STREQUAL "address")
  # AddressSanitizer covers object-size, and null where the memory is read or written. vptr makes every virtual call larger
  # to check downcasts, and there are few.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=object-size,null,vptr -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(SIRTAKI_SANITIZE STREQUAL "thread")
  # -Wno-tsan: g++ warns about atomic_thread_fence in Asio.
  add_compile_options(-fsanitize=thread -Wno-tsan -g1)
  add_link_options(-fsanitize=thread)
endif()

# Precompiled headers, for tests and for libraries with a sanitizer. Libraries in a plain build go without, so that a
# missing include is an error in the preset dev.
set(SIRTAKI_COMMON_HEADERS
  <algorithm> <array> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <functional>
  <future> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view>
  <thread> <unordered_map> <utility> <variant> <vector>)
function(sirtaki_precompile target common)
  if(TARGET ${common})
    # With a precompiled header, g++ 12 warns about code inlined from system headers.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow>)
    target_precompile_headers(${target} REUSE_FROM ${common})
  endif()
endfunction()
# Libraries and tests differ in position-independent code, so each kind has its own precompiled header.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/common_headers.cc" CONTENT "int main() {}\n")
if(SIRTAKI_SANITIZE)
  add_library(sirtaki_library_headers OBJECT "${CMAKE_BINARY_DIR}/common_headers.cc")
  target_precompile_headers(sirtaki_library_headers PRIVATE ${SIRTAKI_COMMON_HEADERS})
  target_link_libraries(sirtaki_library_headers PRIVATE sirtaki_flags)
  target_compile_options(sirtaki_library_headers PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
# Tests spend their time in libraries and compile in half the time with fewer optimizations: -O1 where libraries have -O3,
# with AddressSanitizer -O0. With ThreadSanitizer, -O0 costs as much in the tests as it saves. Libraries for tests have -O1.
set(SIRTAKI_NO_ALIGNMENT $<$<STREQUAL:${SIRTAKI_SANITIZE},address>:-fno-sanitize=alignment>)
set(SIRTAKI_TEST_FLAGS $<IF:$<STREQUAL:${SIRTAKI_SANITIZE},address>,-O0,$<$<CONFIG:Release>:-O1>> ${SIRTAKI_NO_ALIGNMENT})
if(SIRTAKI_TESTS)
  add_executable(sirtaki_test_headers "${CMAKE_BINARY_DIR}/common_headers.cc")
  target_precompile_headers(sirtaki_test_headers PRIVATE ${SIRTAKI_COMMON_HEADERS} <gtest/gtest.h>)
  target_link_libraries(sirtaki_test_headers PRIVATE sirtaki_flags GTest::gtest)
  target_compile_options(sirtaki_test_headers PRIVATE ${SIRTAKI_TEST_FLAGS} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# sirtaki_library(NAME [TYPED_BYTES] SOURCES a.cc b.cc DEPS sirtaki_base ... [EXTERNAL Threads::Threads ...])
# TYPED_BYTES: reads or writes bytes of buffers as numbers. Only there UBSan checks alignment, which takes a third of the
# time to compile.
function(sirtaki_library name)
  cmake_parse_arguments(ARG "TYPED_BYTES" "" "SOURCES;DEPS;EXTERNAL" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC sirtaki_flags ${ARG_DEPS} PRIVATE ${ARG_EXTERNAL})
  sirtaki_precompile(${name} sirtaki_library_headers)
  if(NOT ARG_TYPED_BYTES)
    target_compile_options(${name} PRIVATE ${SIRTAKI_NO_ALIGNMENT})
  endif()
endfunction()

# sirtaki_test(NAME [ONE_THREAD|PURE] LABEL unit|conformance|sim|thread|process|fuzz SOURCES ... DEPS ... [TIMEOUT seconds])
# Adds an executable and a ctest entry. ONE_THREAD: the test never creates a thread, which the plain build enforces;
# ThreadSanitizer leaves it out. PURE: besides, the tested code computes values and handles no memory of its own, so both
# sanitizers leave it out.
function(sirtaki_test name)
  cmake_parse_arguments(ARG "ONE_THREAD;PURE" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if((ARG_PURE AND SIRTAKI_SANITIZE) OR (ARG_ONE_THREAD AND SIRTAKI_SANITIZE STREQUAL "thread"))
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if((ARG_ONE_THREAD OR ARG_PURE) AND NOT SIRTAKI_SANITIZE)
    target_link_libraries(${name} PRIVATE sirtaki_one_thread)
  endif()
  target_link_libraries(${name} PRIVATE sirtaki_flags ${ARG_DEPS} GTest::gtest GTest::gtest_main Threads::Threads)
  target_compile_options(${name} PRIVATE ${SIRTAKI_TEST_FLAGS})
  sirtaki_precompile(${name} sirtaki_test_headers)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(SIRTAKI_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 2")
  endif()
  # Long tests start first, so that none runs alone at the end.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT})
endfunction()
