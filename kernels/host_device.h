// SIRTAKI_HOST_DEVICE marks a function that the CUDA sources call as well, so that the tests of the CPU kernels cover
// its arithmetic.
#pragma once

#ifdef __CUDACC__
#define SIRTAKI_HOST_DEVICE __host__ __device__
#else
#define SIRTAKI_HOST_DEVICE
#endif
