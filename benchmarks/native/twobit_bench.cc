// Ternary codes with error feedback (compare with add_pass), and sums of the bit planes of several ranks.
#include "benchmarks/native/arrays.h"
#include "kernels/twobit/twobit.h"

namespace sirtaki::kernels::bench {
namespace {

constexpr int kExponent = -7;

void twobit_encode(benchmark::State& state) {
  Floats residual(gradient());
  std::vector<std::byte> planes(twobit_bytes(kElements));
  for (auto _ : state) {
    kernels::twobit_encode(kExponent, kElements, {bytes(gradient()), bytes(residual), bytes(residual)}, planes.data());
  }
  count_gradient(state);
}
BENCHMARK(twobit_encode)->UseRealTime();

void twobit_sum(benchmark::State& state) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  std::vector<std::vector<std::byte>> planes(ranks, std::vector<std::byte>(twobit_bytes(kElements)));
  std::vector<TwobitPart> parts;
  for (auto& one : planes) {
    kernels::twobit_encode(kExponent, kElements, {bytes(gradient())}, one.data());
    parts.push_back({one.data(), kExponent});
  }
  Floats out(gradient().size());
  for (auto _ : state) {
    kernels::twobit_sum(parts, kElements, bytes(out));
  }
  count_gradient(state);
}
BENCHMARK(twobit_sum)->Arg(1)->Arg(4)->Arg(8)->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
