// Search for NaN and infinity before a residual is changed.
#include "benchmarks/native/arrays.h"
#include "kernels/finite/finite.h"

namespace sirtaki::kernels::bench {
namespace {

void all_finite(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::all_finite(DType::kF32, bytes(gradient()), kElements));
  }
  count_gradient(state);
}
BENCHMARK(all_finite)->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
