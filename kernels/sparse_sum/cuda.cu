#include "kernels/sparse_sum/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/sparse_sum/payload.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr std::int32_t kTile = static_cast<std::int32_t>(kSparseTile);

struct Sum {
  const std::uint16_t* payloads[kMostPayloads];
  int count;
  std::int64_t n;
  std::int64_t tiles;
  float* out;
  std::uint32_t* firsts;
  float divisor;
};

// The parts of a payload.
struct Source {
  const std::uint16_t* counts;
  const std::uint16_t* values;
  const std::uint16_t* offsets;

  template <class Value>
  static __device__ Source of(const std::uint16_t* payload, std::int64_t tiles) {
    const std::uint32_t entries = payload[0] | static_cast<std::uint32_t>(payload[1]) << 16;
    const std::uint16_t* const values = payload + 2 + tiles;
    return {payload + 2, values, values + entries * static_cast<std::int64_t>(sizeof(typename Value::Bits) / 2)};
  }
};

// Finds the first entry of each tile in each payload; runs one block per payload.
__global__ void __launch_bounds__(kThreads) sparse_find_firsts(const Sum args) {
  __shared__ std::uint32_t scratch[kWarps];
  for (int p = static_cast<int>(blockIdx.x); p < args.count; p += static_cast<int>(gridDim.x)) {
    std::uint32_t before = 0;
    for (std::int64_t begin = 0; begin < args.tiles; begin += kThreads) {
      const std::int64_t tile = begin + threadIdx.x;
      const std::uint32_t count = tile < args.tiles ? args.payloads[p][2 + tile] : 0;
      const Sums sums = block_sums(count, scratch);
      if (tile < args.tiles) {
        args.firsts[p * args.tiles + tile] = before + sums.before;
      }
      before += sums.all;
    }
  }
}

template <class Value>
__global__ void __launch_bounds__(kThreads) sparse_add(const Sum args) {
  using Bits = typename Value::Bits;
  __shared__ float sums[kTile];
  for (std::int64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const auto elements = static_cast<std::int32_t>(lesser<std::int64_t>(args.n - tile * kTile, kTile));
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < elements; i += kThreads) {
      sums[i] = 0;
    }
    __syncthreads();
    for (int p = 0; p < args.count; ++p) {
      const Source source = Source::of<Value>(args.payloads[p], args.tiles);
      const std::int64_t first = args.firsts[p * args.tiles + tile];
      for (std::int64_t e = first + threadIdx.x; e < first + source.counts[tile]; e += kThreads) {
        const std::uint16_t* const from = source.values + e * static_cast<std::int64_t>(sizeof(Bits) / 2);
        if (source.offsets[e] < elements) {
          float& sum = sums[source.offsets[e]];
          sum = ref::canonical(sum + Value::decode(load_bits(from, Bits{})));
        }
      }
      __syncthreads();
    }
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < elements; i += kThreads) {
      args.out[tile * kTile + i] = mean_of(sums[i], args.divisor);
    }
    __syncthreads();
  }
}

template <class Value>
Launch sum_as(const Sum& args, Stream stream) {
  return launch(sparse_add<Value>, args.tiles, kThreads, stream, args);
}

}  // namespace

Launch sparse_sum(const SparseSum& args, Stream stream) {
  const bool value = args.value == DType::kF32 || args.value == DType::kF16 || args.value == DType::kBF16;
  if (!value || args.n < 0 || args.payloads.size() > kMostPayloads || !aligned(args.out, 4) || args.divisor < 1) {
    return kInvalid;
  }
  Sum sum{{},
          0,
          args.n,
          pieces(args.n, kTile),
          reinterpret_cast<float*>(args.out),
          args.firsts,
          static_cast<float>(args.divisor)};
  for (const std::byte* payload : args.payloads) {
    if (!aligned(payload, 2)) {
      return kInvalid;
    }
    sum.payloads[sum.count++] = reinterpret_cast<const std::uint16_t*>(payload);
  }
  const Launch found = launch(sparse_find_firsts, sum.count, kThreads, stream, sum);
  if (!found.ok()) {
    return found;
  }
  Launch result;
  with_value_type(args.value, [&]<class Value>() { result = sum_as<Value>(sum, stream); });
  return result;
}

Launch load_sparse_sum() {
  Launch last = load(sparse_find_firsts);
  for (const DType value : {DType::kF16, DType::kBF16, DType::kF32}) {
    with_value_type(value, [&]<class Value>() { last = last.ok() ? load(sparse_add<Value>) : last; });
  }
  return last;
}

}  // namespace sirtaki::kernels::cuda
