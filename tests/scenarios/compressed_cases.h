// Cases of compressed streams, shared by the tests in virtual time and with threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "tests/scenarios/scenarios.h"

namespace sirtaki::scenarios {

inline constexpr const char* kCodecs[] = {
    "int8:min=0,ndim=0,wire=scatter",         "twobit:min=0,ndim=0,wire=scatter",
    "group_topk:min=0,ndim=0,wire=gather",    "twobit:min=0,ndim=0,wire=gather",
    "group_topk:min=0,ndim=0,wire=scatter",   "threshold_sparse:min=0,ndim=0",
    "block_topk:min=0,ndim=0,rate=5%",        "kernel_sparse:min=0,ndim=0,wire=shared",
    "twobit:min=0,ndim=0,wire=counts",        "group_topk:min=0,ndim=0,wire=ring",
    "threshold_sparse:min=0,ndim=0,wire=ring"};

inline CompressedRun run_of(std::uint64_t seed, int steps) {
  CompressedRun run;
  run.seed = seed;
  run.steps = steps;
  run.codec = kCodecs[seed % std::size(kCodecs)];
  return run;
}

}  // namespace sirtaki::scenarios
