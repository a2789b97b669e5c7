#include "kernels/outer_update/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

struct Arguments {
  OuterStep how;
  bool vector;
  std::int64_t n;
  float* anchor;
  float* momentum;
  float* mean;
};

__global__ void __launch_bounds__(kThreads) outer_steps(const Arguments args) {
  for (std::int64_t first = 4 * first_thread(); first < args.n; first += 4 * all_threads()) {
    const std::int64_t count = args.n - first;
    float anchor[4];
    float mean[4];
    float momentum[4] = {};
    float step[4];
    load_four(args.anchor + first, count, args.vector, anchor);
    load_four(args.mean + first, count, args.vector, mean);
    if (args.momentum != nullptr) {
      load_four(args.momentum + first, count, args.vector, momentum);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      step[j] = args.how.of_differences ? -mean[j] : anchor[j] - mean[j];
    }
    if (args.momentum != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        momentum[j] = ref::canonical(args.how.momentum * momentum[j] + step[j]);
        step[j] = args.how.nesterov ? step[j] + args.how.momentum * momentum[j] : momentum[j];
      }
      store_four(momentum, count, args.vector, args.momentum + first);
    }
    store_four(anchor, count, args.vector, args.mean + first);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      anchor[j] = ref::canonical(anchor[j] - args.how.lr * step[j]);
    }
    store_four(anchor, count, args.vector, args.anchor + first);
  }
}

}  // namespace

Launch outer_update(const OuterUpdate& args, Stream stream) {
  const bool four = aligned(args.anchor, 4) && aligned(args.momentum, 4) && aligned(args.mean, 4);
  if (args.n < 0 || !four) {
    return kInvalid;
  }
  const bool vector = aligned(args.anchor, 16) && aligned(args.momentum, 16) && aligned(args.mean, 16);
  const Arguments arguments{args.how,
                            vector,
                            args.n,
                            reinterpret_cast<float*>(args.anchor),
                            reinterpret_cast<float*>(args.momentum),
                            reinterpret_cast<float*>(args.mean)};
  return launch(outer_steps, pieces(args.n, 4 * kThreads), kThreads, stream, arguments);
}

Launch load_outer_update() {
  return load(outer_steps);
}

}  // namespace sirtaki::kernels::cuda
