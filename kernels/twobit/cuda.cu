#include "kernels/twobit/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/twobit/code.h"
#include "kernels/twobit/exponent.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kWarps = kThreads / kLanes;
constexpr std::int32_t kRecord = static_cast<std::int32_t>(kTwobitRecord);
// Rows of 32 elements: one bit of each element is a word of a plane, held by the lane with the number of the row.
constexpr int kRows = kRecord / static_cast<std::int32_t>(kLanes);
// Rows that a warp reads before it uses the first of them.
constexpr int kAhead = 8;

// The part of a block that a warp processes: up to 1024 consecutive elements.
struct Chunk {
  std::int64_t first;  // index of the first element
  std::int32_t elements;
  std::int64_t block;
  std::int64_t payload;  // byte of the payload of the block
  std::int64_t place;    // byte of the planes
  std::int32_t bytes;    // bytes of the chunk in a plane
  std::int64_t plane;    // bytes of the whole plane

  __device__ Chunk(const TwobitBlocks& blocks, std::int64_t number)
      : first(number * kRecord),
        elements(static_cast<std::int32_t>(lesser<std::int64_t>(blocks.n - first, kRecord))),
        block(first / blocks.block) {
    const std::int64_t begin = block * blocks.block;
    plane = (lesser(blocks.n - begin, blocks.block) + 7) / 8;
    payload = block * (1 + blocks.block / 4);
    place = payload + 1 + (first - begin) / 8;
    bytes = (elements + 7) / 8;
  }
};

// Returns the word of this lane; bits after the plane are 0.
__device__ std::uint32_t load_word(const std::byte* chunk, std::int32_t bytes) {
  const std::byte* const from = chunk + 4 * lane();
  const std::int32_t there = bytes - static_cast<std::int32_t>(4 * lane());
  if (there >= 4 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {
    return *as<std::uint32_t>(from);
  }
  std::uint32_t word = 0;
  for (std::int32_t b = 0; b < lesser(there, 4); ++b) {
    word |= static_cast<std::uint32_t>(from[b]) << (8 * b);
  }
  return word;
}
__device__ void store_word(std::uint32_t word, std::byte* chunk, std::int32_t bytes) {
  std::byte* const to = chunk + 4 * lane();
  const std::int32_t there = bytes - static_cast<std::int32_t>(4 * lane());
  if (there >= 4 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    *as<std::uint32_t>(to) = word;
    return;
  }
  for (std::int32_t b = 0; b < lesser(there, 4); ++b) {
    to[b] = static_cast<std::byte>(word >> (8 * b));
  }
}

// Loads kAhead rows of 32 elements from element `first` on; elements from `elements` on become +0.
__device__ void load_ahead(const Arrays& arrays, std::int64_t first, std::int64_t elements, float (&a)[kAhead]) {
  const auto there = [&](int r) { return r * static_cast<int>(kLanes) + static_cast<int>(lane()) < elements; };
#pragma unroll
  for (int r = 0; r < kAhead; ++r) {
    a[r] = there(r) ? arrays.gradient[first + r * static_cast<int>(kLanes) + lane()] : 0.0F;
  }
  if (arrays.residual != nullptr) {
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      a[r] += there(r) ? arrays.residual[first + r * static_cast<int>(kLanes) + lane()] : 0.0F;
    }
  }
#pragma unroll
  for (float& one : a) {
    one = ref::canonical(one);
  }
}

struct Measure {
  TwobitBlocks blocks;
  Arrays arrays;
  TwobitMagnitude* magnitudes;
};

// Adds the magnitudes of a block with one warp.
__global__ void __launch_bounds__(kThreads) twobit_add_magnitudes(const Measure args) {
  constexpr std::int64_t kStep = kAhead * static_cast<int>(kLanes);
  const std::int64_t all = pieces(args.blocks.n, args.blocks.block);
  for (std::int64_t block = first_warp(); block < all; block += all_warps()) {
    const std::int64_t begin = block * args.blocks.block;
    const std::int64_t elements = lesser(args.blocks.n - begin, args.blocks.block);
    double sum = 0;  // valid in lanes below 16
    std::uint32_t largest = 0;
    for (std::int64_t at = 0; at < elements; at += kStep) {
      float a[kAhead];
      load_ahead(args.arrays, begin + at, elements - at, a);
#pragma unroll
      for (const float one : a) {
        // Elements i and i + 16 of the row go to the same sum, one after the other.
        const float size = std::fabs(one);
        const float next = __shfl_down_sync(kAll, size, 16);
        sum += static_cast<double>(size);
        sum += static_cast<double>(next);
        largest = greater(largest, ref::magnitude_bits(one));
      }
    }
    largest = warp_max(largest);
    double total = 0;
#pragma unroll
    for (int l = 0; l < 16; ++l) {
      total += __shfl_sync(kAll, sum, l);
    }
    if (lane() == 0) {
      args.magnitudes[block] = TwobitMagnitude{ref::canonical(total), std::bit_cast<float>(largest)};
    }
  }
}

struct Choose {
  TwobitBlocks blocks;
  TwobitMagnitude* magnitudes;
  double factor;
  std::byte* exponents;
};

__device__ bool is_finite(float largest) {
  return std::bit_cast<std::uint32_t>(largest) < 0x7F800000U;
}

// Adds the magnitudes of all blocks in order, and stores the total behind them. Runs as one block of threads: while one
// of them adds, the others load the next ones.
__global__ void __launch_bounds__(kThreads) twobit_add_blocks(const Choose args) {
  __shared__ double sums[2][kThreads];
  __shared__ std::uint32_t largest_of[kWarps];
  const std::int64_t all = pieces(args.blocks.n, args.blocks.block);
  const auto load = [&](std::int64_t block) { return block < all ? args.magnitudes[block] : TwobitMagnitude{0, 0}; };
  TwobitMagnitude size = load(threadIdx.x);
  std::uint32_t largest = 0;
  double sum = 0;
  int turn = 0;
  for (std::int64_t begin = 0; begin < all; begin += kThreads, turn ^= 1) {
    sums[turn][threadIdx.x] = size.sum;
    largest = greater(largest, std::bit_cast<std::uint32_t>(size.largest));
    size = load(begin + kThreads + threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (unsigned t = 0; t < kThreads; ++t) {
        sum += sums[turn][t];
      }
    }
  }
  largest = warp_max(largest);
  if (lane() == 0) {
    largest_of[warp()] = largest;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (const std::uint32_t one : largest_of) {
      largest = greater(largest, one);
    }
    args.magnitudes[all] = TwobitMagnitude{sum, std::bit_cast<float>(largest)};
  }
}

// Chooses from the magnitudes of each block or, kWhole, from those of all.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads) twobit_choose_exponents(const Choose args) {
  const std::int64_t all = pieces(args.blocks.n, args.blocks.block);
  for (std::int64_t block = first_thread(); block < all; block += all_threads()) {
    const std::int64_t elements = lesser(args.blocks.n - block * args.blocks.block, args.blocks.block);
    const TwobitMagnitude size = args.magnitudes[kWhole ? all : block];
    const int wanted = twobit_wanted(args.factor, size.sum, kWhole ? args.blocks.n : elements, size.largest);
    const int exponent = greater(wanted, twobit_carrying(args.magnitudes[block].largest));
    args.exponents[block] = is_finite(size.largest) ? static_cast<std::byte>(exponent) : kTwobitNotFinite;
  }
}

struct Encode {
  TwobitBlocks blocks;
  Arrays arrays;
  const std::byte* exponents;
  std::byte* payload;
  std::uint32_t* not_finite;
};

// Encodes 1024 elements with one warp.
class Quantiser {
 public:
  __device__ Quantiser(const Encode& args, const Chunk& chunk)
      : args_(args),
        chunk_(chunk),
        exponent_(args.exponents[chunk.block]),
        level_(twobit_level(static_cast<std::int8_t>(exponent_))) {}

  __device__ void run() {
#pragma unroll 1
    for (int row = 0; row < kRows; row += kAhead) {
      float a[kAhead];
      const int at = row * static_cast<int>(kLanes);
      load_ahead(args_.arrays, chunk_.first + at, chunk_.elements - at, a);
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        take(row + r, a[r]);
      }
    }
    std::byte* const planes = args_.payload + chunk_.place;
    store_word(plus_, planes, chunk_.bytes);
    store_word(minus_, planes + chunk_.plane, chunk_.bytes);
    if (lane() == 0 && chunk_.place == chunk_.payload + 1) {
      args_.payload[chunk_.payload] = exponent_;
      if (exponent_ == kTwobitNotFinite) {
        *args_.not_finite = 1;
      }
    }
  }

 private:
  __device__ void take(int row, float a) {
    const TwobitTaken taken = twobit_take(level_, a);
    const unsigned plus = __ballot_sync(kAll, taken.code > 0);
    const unsigned minus = __ballot_sync(kAll, taken.code < 0);
    plus_ = static_cast<int>(lane()) == row ? plus : plus_;
    minus_ = static_cast<int>(lane()) == row ? minus : minus_;
    const int i = row * static_cast<int>(kLanes) + static_cast<int>(lane());
    if (args_.arrays.left != nullptr && i < chunk_.elements) {
      args_.arrays.left[chunk_.first + i] = taken.left;
    }
  }

  const Encode& args_;
  const Chunk& chunk_;
  const std::byte exponent_;
  const TwobitLevel level_;
  std::uint32_t plus_ = 0;
  std::uint32_t minus_ = 0;
};

__global__ void __launch_bounds__(kThreads) twobit_quantise(const Encode args) {
  const std::int64_t chunks = pieces(args.blocks.n, kRecord);
  for (std::int64_t c = first_warp(); c < chunks; c += all_warps()) {
    const Chunk chunk(args.blocks, c);
    Quantiser(args, chunk).run();
  }
}

struct Sum {
  TwobitBlocks blocks;
  const std::byte* payloads[kMostPayloads];
  int count;
  float divisor;
  float* out;
};

// Adds decoded values, in the order of the payloads. A lane has one element of each row; lanes exchange the words of
// the planes.
__global__ void __launch_bounds__(kThreads) twobit_add(const Sum args) {
  const std::int64_t chunks = pieces(args.blocks.n, kRecord);
  for (std::int64_t c = first_warp(); c < chunks; c += all_warps()) {
    const Chunk chunk(args.blocks, c);
    float sums[kRows] = {};
    for (int p = 0; p < args.count; ++p) {
      const std::byte* const planes = args.payloads[p] + chunk.place;
      const std::uint32_t plus = load_word(planes, chunk.bytes);
      const std::uint32_t minus = load_word(planes + chunk.plane, chunk.bytes);
      const float unit = twobit_power(static_cast<std::int8_t>(args.payloads[p][chunk.payload]));
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const std::uint32_t up = __shfl_sync(kAll, plus, row) >> lane() & 1U;
        const std::uint32_t down = __shfl_sync(kAll, minus, row) >> lane() & 1U;
        sums[row] += up != 0 ? unit : 0;
        sums[row] -= down != 0 ? unit : 0;
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int i = row * static_cast<int>(kLanes) + static_cast<int>(lane());
      if (i < chunk.elements) {
        args.out[chunk.first + i] = mean_of(sums[row], args.divisor);
      }
    }
  }
}

bool is_sound(const TwobitBlocks& blocks) {
  return blocks.n >= 0 && blocks.block > 0 && blocks.block % kTwobitRecord == 0;
}

}  // namespace

Launch twobit_measure(const TwobitMeasure& args, Stream stream) {
  if (!is_sound(args.blocks) || !is_float(args.arrays) || !aligned(args.magnitudes, 8)) {
    return kInvalid;
  }
  const Measure measure{args.blocks, Arrays(args.arrays), args.magnitudes};
  const std::int64_t blocks = pieces(args.blocks.n, args.blocks.block);
  return launch(twobit_add_magnitudes, pieces(blocks, kWarps), kThreads, stream, measure);
}

Launch twobit_choose(const TwobitChoose& args, Stream stream) {
  if (!is_sound(args.blocks) || !aligned(args.magnitudes, 8)) {
    return kInvalid;
  }
  const Choose choose{args.blocks, args.magnitudes, args.factor, args.exponents};
  const std::int64_t blocks = pieces(pieces(args.blocks.n, args.blocks.block), kThreads);
  if (!args.whole) {
    return launch(twobit_choose_exponents<false>, blocks, kThreads, stream, choose);
  }
  const Launch added = launch(twobit_add_blocks, lesser<std::int64_t>(blocks, 1), kThreads, stream, choose);
  return added.ok() ? launch(twobit_choose_exponents<true>, blocks, kThreads, stream, choose) : added;
}

Launch twobit_encode(const TwobitEncode& args, Stream stream) {
  if (!is_sound(args.blocks) || !is_float(args.arrays) || args.not_finite == nullptr) {
    return kInvalid;
  }
  const Launch cleared = clear(args.not_finite, sizeof(*args.not_finite), stream);
  if (!cleared.ok()) {
    return cleared;
  }
  const Encode encode{args.blocks, Arrays(args.arrays), args.exponents, args.payload, args.not_finite};
  const std::int64_t chunks = pieces(args.blocks.n, kRecord);
  return launch(twobit_quantise, pieces(chunks, kWarps), kThreads, stream, encode);
}

Launch twobit_sum(const TwobitSum& args, Stream stream) {
  if (!is_sound(args.blocks) || args.payloads.size() > kMostPayloads || !aligned(args.out, 4) || args.divisor < 1) {
    return kInvalid;
  }
  Sum sum{args.blocks, {}, 0, static_cast<float>(args.divisor), reinterpret_cast<float*>(args.out)};
  for (const std::byte* payload : args.payloads) {
    sum.payloads[sum.count++] = payload;
  }
  return launch(twobit_add, pieces(pieces(args.blocks.n, kRecord), kWarps), kThreads, stream, sum);
}

Launch load_twobit() {
  return load(twobit_add_magnitudes, twobit_add_blocks, twobit_choose_exponents<false>, twobit_choose_exponents<true>,
              twobit_quantise, twobit_add);
}

}  // namespace sirtaki::kernels::cuda
