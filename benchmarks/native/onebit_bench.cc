// Signs with error feedback (compare with add_pass), sums of the signs of several ranks, and the magnitudes alone.
#include "benchmarks/native/arrays.h"
#include "kernels/magnitude/magnitude.h"
#include "kernels/onebit/onebit.h"

namespace sirtaki::kernels::bench {
namespace {

constexpr std::int64_t kBlock = 1024;

void onebit_encode(benchmark::State& state) {
  Floats residual(gradient());
  std::vector<std::byte> payload(onebit_bytes(kBlock, kElements));
  for (auto _ : state) {
    kernels::onebit_encode(kBlock, kElements, {bytes(gradient()), bytes(residual), bytes(residual)}, payload.data());
  }
  count_gradient(state);
}
BENCHMARK(onebit_encode)->UseRealTime();

void onebit_sum(benchmark::State& state) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> payload(onebit_bytes(kBlock, kElements));
  kernels::onebit_encode(kBlock, kElements, {bytes(gradient())}, payload.data());
  const std::vector<std::vector<std::byte>> payloads(ranks, payload);
  std::vector<const std::byte*> parts;
  for (const auto& one : payloads) {
    parts.push_back(one.data());
  }
  Floats out(gradient().size());
  for (auto _ : state) {
    kernels::onebit_sum(kBlock, kElements, parts, bytes(out));
  }
  count_gradient(state);
}
BENCHMARK(onebit_sum)->Arg(1)->Arg(4)->UseRealTime();

void magnitude(benchmark::State& state) {
  Floats residual(gradient());
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::magnitude(kElements, {bytes(gradient()), bytes(residual), bytes(residual)}));
  }
  count_gradient(state);
}
BENCHMARK(magnitude)->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
