# Flags and helpers shared by all targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# What one source declares for itself alone (an unnamed namespace) is then seen by the others of its target.
set(SIRTAKI_BATCH 1 CACHE STRING
  "How many sources of a target are compiled together: 1 rebuilds quickly after a change, 8 builds all in half the time")
if(SIRTAKI_BATCH GREATER 1)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE "${SIRTAKI_BATCH}")
endif()

option(SIRTAKI_WERROR "Warnings end the build: ON where sources change, OFF for a compiler that nobody has tried" ON)
set(SIRTAKI_STOP $<$<BOOL:${SIRTAKI_WERROR}>:-Werror>)

find_program(SIRTAKI_CCACHE ccache)
if(SIRTAKI_CCACHE)
  # Every clone, in any folder, shares one compiler cache: paths below the source folder are hashed as relative ones.
  set(cached "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1)
  set(CMAKE_C_COMPILER_LAUNCHER ${cached} "${SIRTAKI_CCACHE}")
  if(SIRTAKI_TESTS OR SIRTAKI_SANITIZE)
    # ccache requires this sloppiness to cache sources that use precompiled headers.
    list(APPEND cached "CCACHE_SLOPPINESS=pch_defines,time_macros,$ENV{CCACHE_SLOPPINESS}")
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${cached} "${SIRTAKI_CCACHE}")
endif()
find_program(SIRTAKI_MOLD mold)
if(SIRTAKI_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(sirtaki_flags INTERFACE)
target_include_directories(sirtaki_flags INTERFACE "${CMAKE_SOURCE_DIR}")
# -ffp-contract=off: the same bits on every target. -Wno-restrict: false alarms of g++ 12 on "text" + std::string.
# No -Werror on instrumented code, as GCC's manual advises: there it sees overflows and uninitialized reads that are
# not (-Wmaybe-uninitialized, -Warray-bounds). The release build, of the same sources, stops at every warning.
target_compile_options(sirtaki_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wconversion -Wno-sign-conversion
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<IF:$<BOOL:${SIRTAKI_SANITIZE}>,-Wno-maybe-uninitialized,${SIRTAKI_STOP}>
  -ffp-contract=off -fno-omit-frame-pointer)
if(SIRTAKI_SANITIZE STREQUAL "address")
  # object-size looks at what AddressSanitizer does; vptr at downcasts, of which there are hardly any, and it makes
  # every virtual call larger.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=object-size,vptr -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(SIRTAKI_SANITIZE STREQUAL "thread")
  # -Wno-tsan: Asio's atomic_thread_fence, which g++ warns about under TSan.
  add_compile_options(-fsanitize=thread -Wno-tsan -g1)
  add_link_options(-fsanitize=thread)
endif()

# Tests, and libraries with a sanitizer, begin with headers compiled once. Libraries in a plain build do not: it shows
# that every file includes what it uses.
set(SIRTAKI_COMMON_HEADERS
  <algorithm> <array> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <functional>
  <future> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view>
  <thread> <unordered_map> <utility> <variant> <vector>)
function(sirtaki_precompile target common)
  if(TARGET ${common})
    # g++ 12 no longer knows that what it inlines was a system's header, and warns of it.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow>)
    target_precompile_headers(${target} REUSE_FROM ${common})
  endif()
endfunction()
# Libraries and tests are compiled for different places in memory.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/common_headers.cc" CONTENT "int main() {}\n")
if(SIRTAKI_SANITIZE)
  add_library(sirtaki_library_headers OBJECT "${CMAKE_BINARY_DIR}/common_headers.cc")
  target_precompile_headers(sirtaki_library_headers PRIVATE ${SIRTAKI_COMMON_HEADERS})
  target_link_libraries(sirtaki_library_headers PRIVATE sirtaki_flags)
  target_compile_options(sirtaki_library_headers PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
if(SIRTAKI_TESTS)
  add_executable(sirtaki_test_headers "${CMAKE_BINARY_DIR}/common_headers.cc")
  target_precompile_headers(sirtaki_test_headers PRIVATE ${SIRTAKI_COMMON_HEADERS} <gtest/gtest.h>)
  target_link_libraries(sirtaki_test_headers PRIVATE sirtaki_flags GTest::gtest)
  target_compile_options(sirtaki_test_headers PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# sirtaki_library(NAME SOURCES a.cc b.cc DEPS sirtaki_base ... [EXTERNAL Threads::Threads ...])
function(sirtaki_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;EXTERNAL" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC sirtaki_flags ${ARG_DEPS} PRIVATE ${ARG_EXTERNAL})
  sirtaki_precompile(${name} sirtaki_library_headers)
endfunction()

# sirtaki_test(NAME [ONE_THREAD] LABEL unit|conformance|sim|thread|process|fuzz SOURCES ... DEPS ... [TIMEOUT seconds])
# One executable, one ctest entry. ONE_THREAD: it never has a second thread, which the plain build enforces, so there is
# nothing in it for ThreadSanitizer.
function(sirtaki_test name)
  cmake_parse_arguments(ARG "ONE_THREAD" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(ARG_ONE_THREAD AND SIRTAKI_SANITIZE STREQUAL "thread")
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(ARG_ONE_THREAD AND NOT SIRTAKI_SANITIZE)
    target_link_libraries(${name} PRIVATE sirtaki_one_thread)
  endif()
  target_link_libraries(${name} PRIVATE sirtaki_flags ${ARG_DEPS} GTest::gtest GTest::gtest_main Threads::Threads)
  sirtaki_precompile(${name} sirtaki_test_headers)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # A test that may take long starts early: at the end it would run alone.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT})
endfunction()
