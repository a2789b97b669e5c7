# Packages from the folder that this file is in, which benchmarks/gpu/bundle.py makes: cmake -C DIR/packages.cmake ...
# FORCE: a build directory that was configured without them, or with others, knows other places, or none.
set(usr "${CMAKE_CURRENT_LIST_DIR}/usr")
file(GLOB libraries "${usr}/lib/*-linux-gnu")
get_filename_component(triplet "${libraries}" NAME)

# Before the machine's own, which may be of other versions. A newer compiler's headers do not include <cstdint>, which
# those of these packages take for granted.
set(CMAKE_CXX_FLAGS "-isystem ${usr}/include -isystem ${usr}/include/${triplet} -include cstdint"
  CACHE STRING "" FORCE)
set(CMAKE_LIBRARY_PATH "${libraries};${usr}/lib" CACHE PATH "" FORCE)
foreach(kind EXE SHARED MODULE)
  # What libraries of these packages are linked with.
  set(CMAKE_${kind}_LINKER_FLAGS "-Wl,-rpath-link,${libraries}" CACHE STRING "" FORCE)
endforeach()
set(CLI11_DIR "${usr}/share/cmake/CLI11" CACHE PATH "" FORCE)
set(GTest_DIR "${libraries}/cmake/GTest" CACHE PATH "" FORCE)
set(benchmark_DIR "${libraries}/cmake/benchmark" CACHE PATH "" FORCE)
set(OPENSSL_CRYPTO_LIBRARY "${libraries}/libcrypto.so" CACHE FILEPATH "" FORCE)
set(OPENSSL_INCLUDE_DIR "${usr}/include" CACHE PATH "" FORCE)
