# Compiles for the C library in SIRTAKI_SYSROOT (scripts/wheel_sysroot.sh) with this machine's g++ 12.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SIRTAKI_SYSROOT)
set(CMAKE_C_COMPILER gcc-12)
set(CMAKE_CXX_COMPILER g++-12)
set(CMAKE_SYSROOT "${SIRTAKI_SYSROOT}")
# g++ searches its own folders, and so this machine's C library, before the sysroot's unless these come first.
set(folders "")
foreach(folder usr/lib/gcc/x86_64-linux-gnu/12 usr/lib/x86_64-linux-gnu lib/x86_64-linux-gnu)
  string(APPEND folders " -B${SIRTAKI_SYSROOT}/${folder} -L${SIRTAKI_SYSROOT}/${folder}")
endforeach()
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "${folders}")
endforeach()
