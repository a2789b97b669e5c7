#include "kernels/momentum_correction/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

struct Arguments {
  float factor;
  bool nesterov;
  bool vector;
  std::int64_t n;
  const float* gradient;
  float* momentum;
  float* step;
};

__global__ void __launch_bounds__(kThreads) momentum_steps(const Arguments args) {
  for (std::int64_t first = 4 * first_thread(); first < args.n; first += 4 * all_threads()) {
    const std::int64_t count = args.n - first;
    float gradient[4];
    float momentum[4];
    float step[4];
    load_four(args.gradient + first, count, args.vector, gradient);
    load_four(args.momentum + first, count, args.vector, momentum);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      momentum[j] = ref::canonical(args.factor * momentum[j] + gradient[j]);
      step[j] = args.nesterov ? ref::canonical(gradient[j] + args.factor * momentum[j]) : momentum[j];
    }
    store_four(momentum, count, args.vector, args.momentum + first);
    if (args.step != args.momentum) {
      store_four(step, count, args.vector, args.step + first);
    }
  }
}

}  // namespace

Launch momentum_correct(const MomentumCorrect& args, Stream stream) {
  const bool four = aligned(args.gradient, 4) && aligned(args.momentum, 4) && aligned(args.step, 4);
  if (args.n < 0 || !four || (args.how.nesterov && args.step == args.momentum)) {
    return kInvalid;
  }
  const bool vector = aligned(args.gradient, 16) && aligned(args.momentum, 16) && aligned(args.step, 16);
  const Arguments arguments{args.how.factor,
                            args.how.nesterov,
                            vector,
                            args.n,
                            reinterpret_cast<const float*>(args.gradient),
                            reinterpret_cast<float*>(args.momentum),
                            reinterpret_cast<float*>(args.step)};
  return launch(momentum_steps, pieces(args.n, 4 * kThreads), kThreads, stream, arguments);
}

Launch load_momentum_correction() {
  return load(momentum_steps);
}

}  // namespace sirtaki::kernels::cuda
