# Compiles for the C library in SIRTAKI_SYSROOT (scripts/wheel_sysroot.sh) with this machine's g++ 12.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SIRTAKI_SYSROOT)
set(CMAKE_C_COMPILER gcc-12)
set(CMAKE_CXX_COMPILER g++-12)
set(CMAKE_SYSROOT "${SIRTAKI_SYSROOT}")
# The libstdc++.a of the sysroot comes first: this machine's may need a newer C library.
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-L${SIRTAKI_SYSROOT}/usr/lib/gcc/x86_64-linux-gnu/12")
endforeach()
