// Linked into the tests declared ONE_THREAD (cmake/SirtakiTargets.cmake), in place of the C library's: a thread ends
// them.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

// Visible to the C++ library, which is the one that calls it.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* /*thread*/,
                                                                     const pthread_attr_t* /*attributes*/,
                                                                     void* (* /*start*/)(void*),
                                                                     void* /*argument*/) noexcept {
  std::fputs("this test is declared ONE_THREAD, but creates a thread; take that word from its CMakeLists.txt\n",
             stderr);
  std::_Exit(1);
}
