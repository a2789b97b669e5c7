// Momentum before selection; compare with add_pass.
#include "benchmarks/native/arrays.h"
#include "kernels/momentum_correction/momentum_correction.h"

namespace sirtaki::kernels::bench {
namespace {

void momentum_correct(benchmark::State& state) {
  Floats momentum(gradient());
  for (auto _ : state) {
    kernels::momentum_correct({0.9F}, kElements, bytes(gradient()), bytes(momentum), bytes(momentum));
  }
  count_gradient(state);
}
BENCHMARK(momentum_correct)->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
