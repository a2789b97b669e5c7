/* Averages an array over all ranks from C.
 *
 *   sirtakirun -np 4 build/release/adapters/c/c_allreduce
 */
#include <stdio.h>
#include <string.h>

#include "adapters/c/sirtaki.h"

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, sirtaki_last_error());
  sirtaki_shutdown();
  return 1;
}

int main(void) {
  if (sirtaki_init(NULL) != SIRTAKI_OK) {
    return fail("init");
  }
  float values[4];
  for (int i = 0; i < 4; ++i) {
    values[i] = (float)(sirtaki_rank() + i);
  }
  const int64_t dims[1] = {4};

  sirtaki_request_args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.op = SIRTAKI_ALLREDUCE;
  args.name = "values";
  args.reduce_op = SIRTAKI_AVERAGE;
  args.prescale = 1.0;
  args.postscale = 1.0;
  args.input.struct_size = sizeof(args.input);
  args.input.data = values;
  args.input.dtype = SIRTAKI_F32;
  args.input.device_type = SIRTAKI_CPU;
  args.input.ndim = 1;
  args.input.dims = dims;
  args.output = args.input; /* in place */

  sirtaki_request request;
  if (sirtaki_submit(&args, &request) != SIRTAKI_OK) {
    return fail("submit");
  }
  if (sirtaki_wait(request, -1) != SIRTAKI_OK) {
    return fail("wait");
  }
  sirtaki_release(request);
  printf("rank %d of %d: %g %g %g %g\n", sirtaki_rank(), sirtaki_size(), values[0], values[1], values[2], values[3]);
  return sirtaki_shutdown() == SIRTAKI_OK ? 0 : fail("shutdown");
}
