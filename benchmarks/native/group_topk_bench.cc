// Group top-k with error feedback beside the bare pass r = g + r, and beside std::nth_element in each group.
#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "benchmarks/native/arrays.h"
#include "kernels/group_topk/group_topk.h"
#include "kernels/target.h"

namespace sirtaki::kernels::bench {
namespace {

void add_pass(benchmark::State& state) {
  Floats residual(gradient());
  const float* from = gradient().data();
  float* to = residual.data();
  for (auto _ : state) {
    for (std::size_t i = 0; i < residual.size(); ++i) {
      to[i] += from[i];
    }
    benchmark::ClobberMemory();
  }
  count_gradient(state);
  state.SetLabel(std::string(chosen_target()));
}
BENCHMARK(add_pass)->UseRealTime();

// Group sizes, and the elements of each group that are sent: 1 %, and more.
constexpr std::pair<int, int> kSizes[] = {{256, 4}, {512, 5}, {1024, 10}, {1024, 64}, {4096, 41}, {4096, 256}};

void all_sizes(benchmark::internal::Benchmark* benchmark) {
  for (const auto& [group, keep] : kSizes) {
    benchmark->Args({group, keep});
  }
}

GroupTopk sizes(const benchmark::State& state) {
  return {static_cast<std::int32_t>(state.range(0)), static_cast<std::int32_t>(state.range(1))};
}

void group_topk_encode(benchmark::State& state) {
  const GroupTopk how = sizes(state);
  Floats residual(gradient().size());
  std::vector<std::byte> payload(group_topk_bytes(how, kElements));
  for (auto _ : state) {
    kernels::group_topk_encode(how, kElements, {bytes(gradient()), bytes(residual), bytes(residual)}, payload.data());
  }
  count_gradient(state);
}
BENCHMARK(group_topk_encode)->Apply(all_sizes)->UseRealTime();

// Group top-k by the standard library: magnitude and offset form one number, so that ties break the same way.
void nth_element_group(const float* gradient, float* residual, std::size_t group, std::size_t keep, float* payload) {
  static thread_local std::vector<std::uint64_t> ranks;
  ranks.resize(group);
  for (std::size_t i = 0; i < group; ++i) {
    residual[i] += gradient[i];
    const std::uint64_t key = std::bit_cast<std::uint32_t>(residual[i]) & 0x7FFFFFFFU;
    ranks[i] = key << 32 | (0xFFFFFFFFU - i);
  }
  std::nth_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(keep) - 1, ranks.end(), std::greater<>());
  for (std::size_t e = 0; e < keep; ++e) {
    const std::size_t offset = 0xFFFFFFFFU - static_cast<std::uint32_t>(ranks[e]);
    payload[e] = residual[offset];
    residual[offset] = 0;
  }
}

void nth_element(benchmark::State& state) {
  const auto group = static_cast<std::size_t>(state.range(0));
  const auto keep = static_cast<std::size_t>(state.range(1));
  Floats residual(gradient().size());
  Floats payload(gradient().size() / group * keep);
  for (auto _ : state) {
    for (std::size_t g = 0; g < gradient().size() / group; ++g) {
      nth_element_group(gradient().data() + g * group, residual.data() + g * group, group, keep,
                        payload.data() + g * keep);
    }
    benchmark::DoNotOptimize(payload.data());
  }
  count_gradient(state);
}
BENCHMARK(nth_element)->Apply(all_sizes)->UseRealTime();

void group_topk_sum(benchmark::State& state) {
  const GroupTopk how = sizes(state);
  const auto ranks = static_cast<std::size_t>(state.range(2));
  std::vector<std::vector<std::byte>> payloads(ranks);
  std::vector<const std::byte*> pointers;
  for (auto& payload : payloads) {
    payload.resize(group_topk_bytes(how, kElements));
    kernels::group_topk_encode(how, kElements, {bytes(gradient())}, payload.data());
    pointers.push_back(payload.data());
  }
  Floats out(gradient().size());
  for (auto _ : state) {
    kernels::group_topk_sum(how, kElements, pointers, bytes(out));
  }
  count_gradient(state);
}
BENCHMARK(group_topk_sum)->Args({512, 5, 4})->Args({512, 5, 8})->UseRealTime();

}  // namespace
}  // namespace sirtaki::kernels::bench
