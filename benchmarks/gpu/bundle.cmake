# Sets the paths of the packages in the folder of this file, which benchmarks/gpu/bundle.py makes:
# cmake -C DIR/packages.cmake ...
# FORCE replaces other paths in the cache of a build directory that was configured without this folder.
set(usr "${CMAKE_CURRENT_LIST_DIR}/usr")
file(GLOB libraries "${usr}/lib/*-linux-gnu")
get_filename_component(triplet "${libraries}" NAME)

# These headers come before those of the machine, which may have other versions. Headers of newer compilers do not
# include <cstdint>, but headers of these packages rely on it.
set(CMAKE_CXX_FLAGS "-isystem ${usr}/include -isystem ${usr}/include/${triplet} -include cstdint"
  CACHE STRING "" FORCE)
set(CMAKE_LIBRARY_PATH "${libraries};${usr}/lib" CACHE PATH "" FORCE)
foreach(kind EXE SHARED MODULE)
  # The linker finds the dependencies of the libraries of these packages here.
  set(CMAKE_${kind}_LINKER_FLAGS "-Wl,-rpath-link,${libraries}" CACHE STRING "" FORCE)
endforeach()
set(CLI11_DIR "${usr}/share/cmake/CLI11" CACHE PATH "" FORCE)
set(GTest_DIR "${libraries}/cmake/GTest" CACHE PATH "" FORCE)
set(benchmark_DIR "${libraries}/cmake/benchmark" CACHE PATH "" FORCE)
set(OPENSSL_CRYPTO_LIBRARY "${libraries}/libcrypto.so" CACHE FILEPATH "" FORCE)
set(OPENSSL_INCLUDE_DIR "${usr}/include" CACHE PATH "" FORCE)
