// The three passes of a low-rank approximation over a square matrix (compare with add_pass).
#include "benchmarks/native/arrays.h"
#include "kernels/low_rank/low_rank.h"

namespace sirtaki::kernels::bench {
namespace {

constexpr std::int64_t kSide = 4096;
static_assert(kSide * kSide == kElements);

struct Factors {
  explicit Factors(benchmark::State& state)
      : shape{kSide, kSide, static_cast<std::int32_t>(state.range(0))},
        residual(gradient()),
        p(gradient().begin(), gradient().begin() + kSide * state.range(0)),
        q(p) {}
  Feedback arrays() { return {bytes(gradient()), bytes(residual), bytes(residual)}; }

  LowRank shape;
  Floats residual;
  Floats p;
  Floats q;
};

void low_rank_project(benchmark::State& state) {
  Factors factors(state);
  for (auto _ : state) {
    kernels::low_rank_project(factors.shape, factors.arrays(), bytes(factors.q), bytes(factors.p));
  }
  count_gradient(state);
}
BENCHMARK(low_rank_project)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

void low_rank_project_back(benchmark::State& state) {
  Factors factors(state);
  for (auto _ : state) {
    kernels::low_rank_project_back(factors.shape, factors.arrays(), bytes(factors.p), bytes(factors.q));
  }
  count_gradient(state);
}
BENCHMARK(low_rank_project_back)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

void low_rank_rebuild(benchmark::State& state) {
  Factors factors(state);
  Floats out(gradient().size());
  for (auto _ : state) {
    kernels::low_rank_rebuild(factors.shape, factors.arrays(), bytes(factors.p), bytes(factors.q), bytes(out));
  }
  count_gradient(state);
}
BENCHMARK(low_rank_rebuild)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
