#include "kernels/scaled_cast/cuda.h"

#include <limits>

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/scaled_cast/code.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr std::int64_t kWarps = kThreads / kLanes;
constexpr std::int32_t kInRegisters = 1024;

struct Encode {
  Arrays arrays;
  std::byte* scales;
  std::byte* codes;
  std::uint32_t* not_finite;
  std::int64_t n;
  std::int32_t block;
  bool vector;
};

// Returns the code of `a`; the residual replaces `a`.
template <class Code>
__device__ std::uint8_t encode_one(std::int8_t scale, float up, float down, float& a) {
  if (scale == kNotFinite) {
    return 0;
  }
  const std::uint8_t code = Code::encode(a * up);
  a -= Code::decode(code) * down;
  return code;
}

template <class Code>
__device__ void store_scale(const Encode& args, std::int64_t block, std::int8_t scale) {
  args.scales[block] = static_cast<std::byte>(scale);
  if (scale == kNotFinite) {
    *args.not_finite = 1;
  }
}

__device__ inline void store_codes(const std::uint8_t (&codes)[4], std::int32_t count, std::byte* to) {
  if (count >= 4 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    *as<uchar4>(to) = uchar4{codes[0], codes[1], codes[2], codes[3]};
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < count) {
      to[j] = static_cast<std::byte>(codes[j]);
    }
  }
}

// Runs a warp for each block of up to 32 kItems elements.
template <class Code, int kItems>
__global__ void __launch_bounds__(kThreads) scaled_in_registers(const Encode args) {
  const std::int64_t blocks = pieces(args.n, args.block);
  for (std::int64_t block = first_warp(); block < blocks; block += all_warps()) {
    const std::int64_t first = block * args.block;
    const auto elements = static_cast<std::int32_t>(lesser<std::int64_t>(args.n - first, args.block));
    float a[kItems];
    args.arrays.load(first, elements, args.vector, a);
    std::uint32_t largest = 0;
#pragma unroll
    for (const float one : a) {
      largest = greater(largest, ref::magnitude_bits(one));
    }
    const std::int8_t scale = scale_of<Code>(warp_max(largest));
    if (lane() == 0) {
      store_scale<Code>(args, block, scale);
    }
    const float up = power_of_two(-scale);
    const float down = power_of_two(scale);
#pragma unroll
    for (int i = 0; i < kItems; i += 4) {
      const std::int32_t at = i * static_cast<int>(kLanes) + 4 * static_cast<int>(lane());
      std::uint8_t codes[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        codes[j] = encode_one<Code>(scale, up, down, a[i + j]);
      }
      store_codes(codes, elements - at, args.codes + first + at);
    }
    args.arrays.store(a, first, elements, args.vector);
  }
}

// All threads work on each block; the second pass reads its sums from where the first pass has stored them.
template <class Code>
__global__ void __launch_bounds__(kThreads) scaled_in_memory(const Encode args) {
  __shared__ std::uint32_t of_warps[kThreads / kLanes];
  const Arrays& arrays = args.arrays;
  const std::int64_t blocks = pieces(args.n, args.block);
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const std::int64_t first = block * args.block;
    const std::int64_t end = lesser(first + args.block, args.n);
    std::uint32_t largest = 0;
    for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
      const float a = arrays.element(i);
      if (arrays.left != nullptr) {
        arrays.left[i] = a;
      }
      largest = greater(largest, ref::magnitude_bits(a));
    }
    const std::uint32_t of_warp = warp_max(largest);
    __syncthreads();
    if (lane() == 0) {
      of_warps[warp()] = of_warp;
    }
    __syncthreads();
    for (const std::uint32_t one : of_warps) {
      largest = greater(largest, one);
    }
    const std::int8_t scale = scale_of<Code>(largest);
    if (threadIdx.x == 0) {
      store_scale<Code>(args, block, scale);
    }
    const float up = power_of_two(-scale);
    const float down = power_of_two(scale);
    for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
      float a = arrays.left != nullptr ? arrays.left[i] : arrays.element(i);
      args.codes[i] = static_cast<std::byte>(encode_one<Code>(scale, up, down, a));
      if (arrays.left != nullptr) {
        arrays.left[i] = a;
      }
    }
  }
}

struct Sum {
  const std::byte* payloads[kMostPayloads];
  int count;
  float* out;
  float divisor;
  std::int64_t n;
  std::int64_t blocks;
  std::uint64_t inverse;  // the inverse of `block`, for quotient()
  std::int32_t block;
  bool vector;
};

// The blocks of four consecutive elements; elements behind the last one are in the last block.
struct FourBlocks {
  std::int64_t of[4];

  __device__ FourBlocks(const Sum& args, std::int64_t first) : of{quotient(first, args.inverse)} {
    auto place = static_cast<std::int32_t>(first - of[0] * args.block);
#pragma unroll
    for (int j = 1; j < 4; ++j) {
      const bool next = ++place == args.block && first + j < args.n;
      of[j] = of[j - 1] + (next ? 1 : 0);
      place = next ? 0 : place;
    }
  }
};

// Adds four consecutive elements of one payload to `sums`.
template <class Code>
__device__ void add_four(const Sum& args, const std::byte* payload, std::int64_t first, const FourBlocks& blocks,
                         float (&sums)[4]) {
  const std::byte* const codes = payload + args.blocks + first;
  std::uint8_t four[4] = {};
  if (first + 4 <= args.n && reinterpret_cast<std::uintptr_t>(codes) % 4 == 0) {
    const uchar4 all = *as<uchar4>(codes);
    four[0] = all.x;
    four[1] = all.y;
    four[2] = all.z;
    four[3] = all.w;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      four[j] = first + j < args.n ? static_cast<std::uint8_t>(codes[j]) : 0;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto scale = static_cast<std::int8_t>(payload[blocks.of[j]]);
    sums[j] +=
        scale == kNotFinite ? std::numeric_limits<float>::quiet_NaN() : Code::decode(four[j]) * power_of_two(scale);
  }
}

template <class Code>
__global__ void __launch_bounds__(kThreads) scaled_add(const Sum args) {
  for (std::int64_t first = 4 * first_thread(); first < args.n; first += 4 * all_threads()) {
    const FourBlocks blocks(args, first);
    float sums[4] = {};
    for (int p = 0; p < args.count; ++p) {
      add_four<Code>(args, args.payloads[p], first, blocks, sums);
    }
#pragma unroll
    for (float& sum : sums) {
      sum = mean_of(sum, args.divisor);
    }
    store_four(sums, args.n - first, args.vector, args.out + first);
  }
}

template <class Code>
Launch encode_as(const Encode& args, Stream stream) {
  const std::int64_t blocks = pieces(args.n, args.block);
  if (args.block <= 256) {
    return launch(scaled_in_registers<Code, 8>, pieces(blocks, kWarps), kThreads, stream, args);
  }
  if (args.block <= kInRegisters) {
    return launch(scaled_in_registers<Code, 32>, pieces(blocks, kWarps), kThreads, stream, args);
  }
  return launch(scaled_in_memory<Code>, blocks, kThreads, stream, args);
}

template <class Code>
Launch sum_as(const Sum& args, Stream stream) {
  return launch(scaled_add<Code>, pieces(args.n, 4 * kThreads), kThreads, stream, args);
}

bool is_sound(const ScaledCast& how, std::int64_t n) {
  return n >= 0 && n < kMostDivided && how.block >= 1 && how.block <= 65536 && how.code <= ScaledCode::kE5M2;
}

}  // namespace

Launch scaled_encode(const ScaledEncode& args, Stream stream) {
  if (!is_sound(args.how, args.n) || !is_float(args.arrays) || args.not_finite == nullptr) {
    return kInvalid;
  }
  const Launch cleared = clear(args.not_finite, sizeof(*args.not_finite), stream);
  if (!cleared.ok()) {
    return cleared;
  }
  const bool vector = args.how.block % 4 == 0 && is_vector(args.arrays);
  std::byte* const codes = args.payload + pieces(args.n, args.how.block);
  const Encode encode{Arrays(args.arrays), args.payload, codes, args.not_finite, args.n, args.how.block, vector};
  Launch result;
  with_byte_code_type(args.how.code, [&]<class Code>() { result = encode_as<Code>(encode, stream); });
  return result;
}

Launch scaled_sum(const ScaledSum& args, Stream stream) {
  if (!is_sound(args.how, args.n) || args.payloads.size() > kMostPayloads || !aligned(args.out, 4) ||
      args.divisor < 1) {
    return kInvalid;
  }
  Sum sum{{},
          0,
          reinterpret_cast<float*>(args.out),
          static_cast<float>(args.divisor),
          args.n,
          pieces(args.n, args.how.block),
          inverse_of(args.how.block),
          args.how.block,
          aligned(args.out, 16)};
  for (const std::byte* payload : args.payloads) {
    sum.payloads[sum.count++] = payload;
  }
  Launch result;
  with_byte_code_type(args.how.code, [&]<class Code>() { result = sum_as<Code>(sum, stream); });
  return result;
}

Launch load_scaled_cast() {
  Launch last;
  for (const ScaledCode code : {ScaledCode::kInt8, ScaledCode::kE4M3, ScaledCode::kE5M2}) {
    with_byte_code_type(code, [&]<class Code>() {
      last = last.ok() ? load(scaled_in_registers<Code, 8>, scaled_in_registers<Code, 32>, scaled_in_memory<Code>,
                              scaled_add<Code>)
                       : last;
    });
  }
  return last;
}

}  // namespace sirtaki::kernels::cuda
