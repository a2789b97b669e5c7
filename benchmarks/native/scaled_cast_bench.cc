// Casts to 8 bits with error feedback (compare with add_pass), and sums of payloads of several ranks.
#include "benchmarks/native/arrays.h"
#include "kernels/scaled_cast/scaled_cast.h"

namespace sirtaki::kernels::bench {
namespace {

void scaled_encode(benchmark::State& state) {
  const ScaledCast how{static_cast<ScaledCode>(state.range(0))};
  Floats residual(gradient());
  std::vector<std::byte> payload(scaled_bytes(how, kElements));
  for (auto _ : state) {
    kernels::scaled_encode(how, kElements, {bytes(gradient()), bytes(residual), bytes(residual)}, payload.data());
  }
  count_gradient(state);
}
BENCHMARK(scaled_encode)->DenseRange(0, 3)->UseRealTime();

void scaled_sum(benchmark::State& state) {
  const ScaledCast how{static_cast<ScaledCode>(state.range(0))};
  std::vector<std::byte> payload(scaled_bytes(how, kElements));
  kernels::scaled_encode(how, kElements, {bytes(gradient())}, payload.data());
  const std::vector<const std::byte*> payloads(static_cast<std::size_t>(state.range(1)), payload.data());
  Floats out(gradient().size());
  for (auto _ : state) {
    kernels::scaled_sum(how, kElements, payloads, bytes(out));
  }
  count_gradient(state);
}
BENCHMARK(scaled_sum)->ArgsProduct({{0, 1, 2, 3}, {4}})->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
