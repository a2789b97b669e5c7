# Finds the libraries. One error names all that are missing, with Debian's package of each. Folders use the variables
# SIRTAKI_HWY and SIRTAKI_GLOO_LIBRARY and the targets CLI11::CLI11 and OpenSSL::Crypto; headers of the others are on
# the include path of sirtaki_flags.
option(SIRTAKI_STATIC "Link libraries and the C++ standard library in, for a program that needs only the C library" OFF)
set(SIRTAKI_GLOO AUTO CACHE STRING "The backend net.backend = \"gloo\": AUTO (where Gloo is found), ON or OFF")
if(SIRTAKI_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()

set(missing "")
# sirtaki_need(FOUND TEXT): adds TEXT to the error if the variable FOUND is false.
macro(sirtaki_need found text)
  if(NOT ${found})
    string(APPEND missing "\n  ${text}")
  endif()
endmacro()

find_path(SIRTAKI_BOOST_INCLUDE boost/asio.hpp)
if(SIRTAKI_BOOST_INCLUDE)
  file(STRINGS "${SIRTAKI_BOOST_INCLUDE}/boost/version.hpp" line REGEX "define BOOST_VERSION ")
  string(REGEX MATCH "[0-9]+" boost_version "${line}")
endif()
# Coroutines of older ones do not compile as C++20.
if(SIRTAKI_BOOST_INCLUDE AND boost_version GREATER_EQUAL 108100)
  set(boost_is_new_enough TRUE)
endif()
sirtaki_need(boost_is_new_enough
  "Boost 1.81 or newer, headers only (found: ${SIRTAKI_BOOST_INCLUDE}): libboost1.81-dev, or libboost-dev if newer")
find_path(SIRTAKI_TOML_INCLUDE toml++/toml.h)
sirtaki_need(SIRTAKI_TOML_INCLUDE "toml++, headers only: libtomlplusplus-dev")
find_path(SIRTAKI_XXHASH_INCLUDE xxhash.h)
sirtaki_need(SIRTAKI_XXHASH_INCLUDE "xxHash, headers only: libxxhash-dev")
find_library(SIRTAKI_HWY hwy)
find_path(SIRTAKI_HWY_INCLUDE hwy/highway.h)
sirtaki_need(SIRTAKI_HWY "Highway: libhwy-dev")
find_package(OpenSSL QUIET COMPONENTS Crypto)
sirtaki_need(OPENSSL_FOUND "OpenSSL: libssl-dev")
find_path(SIRTAKI_CLI11_INCLUDE CLI/CLI.hpp)
sirtaki_need(SIRTAKI_CLI11_INCLUDE "CLI11, headers only: libcli11-dev")
if(NOT SIRTAKI_GLOO STREQUAL "OFF")
  find_library(SIRTAKI_GLOO_LIBRARY gloo)
  if(SIRTAKI_GLOO STREQUAL "ON")
    sirtaki_need(SIRTAKI_GLOO_LIBRARY "Gloo: libgloo-dev, or -DSIRTAKI_GLOO=OFF for a build without this backend")
  elseif(NOT SIRTAKI_GLOO_LIBRARY)
    message(STATUS "Gloo: not found, so net.backend = \"gloo\" is left out")
  endif()
endif()
if(missing)
  message(FATAL_ERROR "Sirtaki needs libraries that are not here (with their packages in Debian and Ubuntu):${missing}\n"
    "Elsewhere, install them in any way and name their folder: -DCMAKE_PREFIX_PATH=FOLDER, or "
    "pip install . -C cmake.define.CMAKE_PREFIX_PATH=FOLDER.")
endif()
if(NOT TARGET CLI11::CLI11)
  add_library(CLI11::CLI11 INTERFACE IMPORTED)
  set_target_properties(CLI11::CLI11 PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${SIRTAKI_CLI11_INCLUDE}")
endif()
target_include_directories(sirtaki_flags SYSTEM INTERFACE
  "${SIRTAKI_BOOST_INCLUDE}" "${SIRTAKI_TOML_INCLUDE}" "${SIRTAKI_XXHASH_INCLUDE}" "${SIRTAKI_HWY_INCLUDE}")

if(SIRTAKI_STATIC)
  # No symbol of a linked library may be seen by other libraries of a process, nor theirs be taken.
  # Functions in sections of their own are left out where nothing calls them.
  add_compile_options(-ffunction-sections -fdata-sections)
  add_link_options(-static-libstdc++ -Wl,--exclude-libs,ALL -Wl,--gc-sections)
  include(CheckSymbolExists)
  check_symbol_exists(arc4random stdlib.h SIRTAKI_NEW_GLIBC)
endif()
# sirtaki_small(TARGET...): optimizes libraries that wait for processes and messages for size, where size counts.
function(sirtaki_small)
  if(SIRTAKI_STATIC)
    foreach(target ${ARGN})
      target_compile_options(${target} PRIVATE -Os)
    endforeach()
  endif()
endfunction()
# sirtaki_self_contained(TARGET...): adds the parts that SIRTAKI_STATIC needs to finished libraries and programs.
function(sirtaki_self_contained)
  if(SIRTAKI_STATIC AND NOT SIRTAKI_NEW_GLIBC)
    foreach(target ${ARGN})
      target_sources(${target} PRIVATE "${CMAKE_SOURCE_DIR}/cmake/old_glibc.c")
    endforeach()
  endif()
endfunction()
