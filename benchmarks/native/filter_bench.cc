// Filters of a convolution with error feedback: norms (compare with add_pass), and the extraction of a tenth of them.
#include "benchmarks/native/arrays.h"
#include "kernels/filter/filter.h"

namespace sirtaki::kernels::bench {
namespace {

FilterShape shape_of(const benchmark::State& state) {
  return {kElements / state.range(0), state.range(0)};
}

void filter_norms(benchmark::State& state) {
  const FilterShape shape = shape_of(state);
  Floats residual(gradient().size());
  Floats norms(static_cast<std::size_t>(shape.filters));
  for (auto _ : state) {
    kernels::filter_norms(shape, {bytes(gradient()), bytes(residual), bytes(residual)}, bytes(norms));
  }
  count_gradient(state);
}
BENCHMARK(filter_norms)->Arg(576)->Arg(4608)->UseRealTime();

void filter_gather(benchmark::State& state) {
  const FilterShape shape = shape_of(state);
  const std::int64_t keep = shape.filters / 10;
  Floats values(gradient());
  Floats norms(static_cast<std::size_t>(shape.filters));
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(keep));
  kernels::filter_norms(shape, {bytes(values)}, bytes(norms));
  filter_select(shape.filters, keep, bytes(norms), bytes(ids));
  std::vector<std::byte> sent(static_cast<std::size_t>(keep * shape.size) * 4);
  const FilterGather how{static_cast<DType>(state.range(1))};
  for (auto _ : state) {
    kernels::filter_gather(shape, {bytes(ids), keep}, how, bytes(values), sent.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * keep * shape.size * 4);
}
BENCHMARK(filter_gather)
    ->ArgsProduct({{576}, {static_cast<int>(DType::kF32), static_cast<int>(DType::kF16)}})
    ->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
