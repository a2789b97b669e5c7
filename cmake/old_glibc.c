/* Old glibc: the two symbols of newer ones that g++ 12's libstdc++.a requires, so that it can be linked for glibc 2.31. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#define SRT_HIDDEN __attribute__((visibility("hidden")))

/* False: reference counts are atomic always. */
SRT_HIDDEN char __libc_single_threaded = 0;

/* Serves std::random_device, which cannot report an error; the arc4random() of glibc ends the process, too. */
SRT_HIDDEN uint32_t arc4random(void);
SRT_HIDDEN uint32_t arc4random(void) {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
    if (errno != EINTR) {
      abort();
    }
  }
  return value;
}
