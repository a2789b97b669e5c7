// Threshold selection with error feedback (compare with add_pass), its threshold, and sums of payloads of many ranks.
#include <bit>

#include "benchmarks/native/arrays.h"
#include "kernels/kth_magnitude/kth_magnitude.h"
#include "kernels/sparse_sum/sparse_sum.h"
#include "kernels/threshold_select/threshold_select.h"

namespace sirtaki::kernels::bench {
namespace {

// One element of a hundred reaches this threshold.
ThresholdSelect one_percent() {
  const KthMagnitude kth = kth_magnitude(kElements, kElements / 100, bytes(gradient()));
  return {std::bit_cast<float>(kth.key), kElements / 50};
}

void kth_magnitude(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::kth_magnitude(kElements, kElements / 100, bytes(gradient())));
  }
  count_gradient(state);
}
BENCHMARK(kth_magnitude)->UseRealTime();

// The new residual goes to another array, so that every round selects the same elements.
void threshold_select(benchmark::State& state) {
  const ThresholdSelect how = one_percent();
  Floats residual(gradient().size());
  Floats left(gradient().size());
  std::vector<std::byte> payload(threshold_max_bytes(how, kElements));
  for (auto _ : state) {
    kernels::threshold_select(how, kElements, {bytes(gradient()), bytes(residual), bytes(left)}, payload.data());
  }
  count_gradient(state);
}
BENCHMARK(threshold_select)->UseRealTime();

void sparse_sum(benchmark::State& state) {
  const ThresholdSelect how = one_percent();
  std::vector<std::byte> payload(threshold_max_bytes(how, kElements));
  const Selected selected = kernels::threshold_select(how, kElements, {bytes(gradient())}, payload.data());
  const std::vector<SparsePayload> payloads(static_cast<std::size_t>(state.range(0)),
                                            {payload.data(), selected.entries});
  Floats out(gradient().size());
  for (auto _ : state) {
    kernels::sparse_sum(how.value, kElements, payloads, bytes(out));
  }
  count_gradient(state);
}
BENCHMARK(sparse_sum)->Arg(4)->Arg(8)->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
