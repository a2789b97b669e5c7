#include "kernels/twobit/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/twobit/code.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kWarps = kThreads / kLanes;
constexpr std::int32_t kRecord = static_cast<std::int32_t>(kTwobitRecord);
// Rows of 32 elements: one bit of each element is a word of a plane, held by the lane with the number of the row.
constexpr int kRows = kRecord / static_cast<std::int32_t>(kLanes);
// Rows that a warp reads before it uses the first of them.
constexpr int kAhead = 8;

// The part of a stripe that a warp processes: up to 1024 consecutive elements.
struct Chunk {
  std::int64_t first;  // index of the first element
  std::int32_t elements;
  std::int64_t stripe;
  std::int64_t place;  // byte of the planes
  std::int32_t bytes;  // bytes of a plane from there on; 128 at most belong to this chunk
  std::int64_t plane;  // bytes of the whole plane

  __device__ Chunk(const TwobitStripes& stripes, std::int64_t number)
      : first(number * kRecord),
        elements(static_cast<std::int32_t>(lesser<std::int64_t>(stripes.n - first, kRecord))),
        stripe(first / stripes.stripe) {
    const std::int64_t begin = stripe * stripes.stripe;
    plane = (lesser(stripes.n - begin, stripes.stripe) + 7) / 8;
    place = stripe * static_cast<std::int64_t>(stripes.pitch) + (first - begin) / 8;
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

struct Encode {
  TwobitStripes stripes;
  Arrays arrays;
  const std::int32_t* exponents;
  std::byte* planes;
  TwobitRecord* records;
};

// Encodes 1024 elements with one warp.
class Quantiser {
 public:
  __device__ Quantiser(const Encode& args, const Chunk& chunk)
      : args_(args), chunk_(chunk), level_(twobit_level(args.exponents[chunk.stripe])) {}

  __device__ void run() {
#pragma unroll 1
    for (int row = 0; row < kRows; row += kAhead) {
      float a[kAhead];
      load(row, a);
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        take(row + r, a[r]);
      }
    }
    std::byte* const planes = args_.planes + chunk_.place;
    store_word(plus_, planes, chunk_.bytes);
    store_word(minus_, planes + chunk_.plane, chunk_.bytes);
  }

  __device__ void record(TwobitRecord& record) const {
    if (lane() < 16) {
      record.sums[lane()] = sum_;
    }
    const std::uint32_t sent = warp_sum(static_cast<std::uint32_t>(__popc(plus_ | minus_)));
    const unsigned not_finite = __ballot_sync(kAll, largest_ >= 0x7F800000U);
    if (lane() == 0) {
      record.sent = static_cast<std::int32_t>(sent);
      record.not_finite = not_finite != 0 ? 1 : 0;
    }
  }

 private:
  __device__ bool present(int row) const {
    return row * static_cast<int>(kLanes) + static_cast<int>(lane()) < chunk_.elements;
  }
  __device__ std::int64_t element(int row) const {
    return chunk_.first + row * static_cast<int>(kLanes) + lane();
  }

  __device__ void load(int row, float (&a)[kAhead]) const {
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      a[r] = present(row + r) ? args_.arrays.gradient[element(row + r)] : 0.0F;
    }
    if (args_.arrays.residual != nullptr) {
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        a[r] += present(row + r) ? args_.arrays.residual[element(row + r)] : 0.0F;
      }
    }
  }

  __device__ void take(int row, float sum) {
    const float a = ref::canonical(sum);
    const TwobitTaken taken = twobit_take(level_, a);
    const unsigned plus = __ballot_sync(kAll, taken.code > 0);
    const unsigned minus = __ballot_sync(kAll, taken.code < 0);
    plus_ = static_cast<int>(lane()) == row ? plus : plus_;
    minus_ = static_cast<int>(lane()) == row ? minus : minus_;
    // Elements i and i + 16 of the row go to the same sum, one after the other.
    const float size = std::fabs(a);
    const float next = __shfl_down_sync(kAll, size, 16);
    sum_ = sum_ + size + next;
    largest_ = greater(largest_, ref::magnitude_bits(a));
    if (args_.arrays.left != nullptr && present(row)) {
      args_.arrays.left[element(row)] = taken.left;
    }
  }

  const Encode& args_;
  const Chunk& chunk_;
  const TwobitLevel level_;
  std::uint32_t plus_ = 0;
  std::uint32_t minus_ = 0;
  std::uint32_t largest_ = 0;
  float sum_ = 0;  // valid in lanes below 16
};

__global__ void __launch_bounds__(kThreads) twobit_quantise(const Encode args) {
  const std::int64_t chunks = pieces(args.stripes.n, kRecord);
  for (std::int64_t c = first_warp(); c < chunks; c += all_warps()) {
    const Chunk chunk(args.stripes, c);
    Quantiser quantiser(args, chunk);
    quantiser.run();
    quantiser.record(args.records[c]);
  }
}

// Adds the records of a stripe in order, one after the other, in every lane. Runs a warp for each stripe.
__global__ void __launch_bounds__(kThreads)
    twobit_add_records(const TwobitStripes stripes, const TwobitRecord* records, TwobitStats* stats) {
  const std::int64_t all = pieces(stripes.n, stripes.stripe);
  for (std::int64_t stripe = first_warp(); stripe < all; stripe += all_warps()) {
    const std::int64_t begin = stripe * (stripes.stripe / kRecord);
    const std::int64_t end = lesser(begin + stripes.stripe / kRecord, pieces(stripes.n, kRecord));
    double magnitude = 0;
    std::int64_t sent = 0;
    std::uint32_t not_finite = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      const float sum = lane() < 16 ? records[r].sums[lane()] : 0.0F;
#pragma unroll
      for (int l = 0; l < 16; ++l) {
        magnitude += static_cast<double>(__shfl_sync(kAll, sum, l));
      }
      sent += records[r].sent;
      not_finite |= records[r].not_finite;
    }
    if (lane() == 0) {
      stats[stripe] = TwobitStats{not_finite == 0, sent, ref::canonical(magnitude)};
    }
  }
}

struct Sum {
  TwobitStripes stripes;
  TwobitSource parts[kMostPayloads];
  int count;
  std::byte* out;
};

// Adds decoded values, in the order of the parts.
struct AddValues {
  using Value = float;
  __device__ static float unit(const TwobitSource& part, std::int64_t stripe) {
    return twobit_power(part.exponents[stripe]);
  }
};
// Counts codes.
struct AddCounts {
  using Value = std::int8_t;
  __device__ static int unit(const TwobitSource& /*part*/, std::int64_t /*stripe*/) { return 1; }
};

// Adds the parts. A lane has one element of each row; lanes exchange the words of the planes.
template <class Add>
__global__ void __launch_bounds__(kThreads) twobit_add(const Sum args) {
  const std::int64_t chunks = pieces(args.stripes.n, kRecord);
  for (std::int64_t c = first_warp(); c < chunks; c += all_warps()) {
    const Chunk chunk(args.stripes, c);
    decltype(Add::unit(args.parts[0], 0)) sums[kRows] = {};
    for (int p = 0; p < args.count; ++p) {
      const std::byte* const planes = args.parts[p].planes + chunk.place;
      const std::uint32_t plus = load_word(planes, chunk.bytes);
      const std::uint32_t minus = load_word(planes + chunk.plane, chunk.bytes);
      const auto unit = Add::unit(args.parts[p], chunk.stripe);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const std::uint32_t up = __shfl_sync(kAll, plus, row) >> lane() & 1U;
        const std::uint32_t down = __shfl_sync(kAll, minus, row) >> lane() & 1U;
        sums[row] += up != 0 ? unit : 0;
        sums[row] -= down != 0 ? unit : 0;
      }
    }
    auto* const out = as<typename Add::Value>(args.out) + chunk.first;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int i = row * static_cast<int>(kLanes) + static_cast<int>(lane());
      if (i < chunk.elements) {
        out[i] = static_cast<typename Add::Value>(sums[row]);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    twobit_scale_counts(const TwobitStripes stripes, const std::int32_t* exponents, const std::byte* counts,
                        float* out) {
  for (std::int64_t i = first_thread(); i < stripes.n; i += all_threads()) {
    const auto count = static_cast<float>(as<std::int8_t>(counts)[i]);
    out[i] = count * twobit_power(exponents[i / stripes.stripe]);
  }
}

bool is_sound(const TwobitStripes& stripes) {
  const std::int64_t plane = (lesser(stripes.n, stripes.stripe) + 7) / 8;
  const bool apart = stripes.n <= stripes.stripe || stripes.pitch >= static_cast<std::size_t>(2 * plane);
  return stripes.n >= 0 && stripes.stripe > 0 && stripes.stripe % kTwobitRecord == 0 && apart;
}

template <class Add>
Launch add(const TwobitSum& args, std::size_t most, Stream stream) {
  if (!is_sound(args.stripes) || args.parts.size() > most || !aligned(args.out, sizeof(typename Add::Value))) {
    return kInvalid;
  }
  Sum sum{args.stripes, {}, 0, args.out};
  for (const TwobitSource& part : args.parts) {
    sum.parts[sum.count++] = part;
  }
  return launch(twobit_add<Add>, pieces(pieces(args.stripes.n, kRecord), kWarps), kThreads, stream, sum);
}

}  // namespace

Launch twobit_encode(const TwobitEncode& args, Stream stream) {
  if (!is_sound(args.stripes) || !is_float(args.arrays)) {
    return kInvalid;
  }
  const Encode encode{args.stripes, Arrays(args.arrays), args.exponents, args.planes, args.records};
  const std::int64_t chunks = pieces(args.stripes.n, kRecord);
  const Launch quantised = launch(twobit_quantise, pieces(chunks, kWarps), kThreads, stream, encode);
  if (!quantised.ok()) {
    return quantised;
  }
  const std::int64_t stripes = pieces(args.stripes.n, args.stripes.stripe);
  return launch(twobit_add_records, pieces(stripes, kWarps), kThreads, stream, args.stripes, args.records, args.stats);
}

Launch twobit_sum(const TwobitSum& args, Stream stream) {
  return add<AddValues>(args, kMostPayloads, stream);
}

Launch twobit_count(const TwobitSum& args, Stream stream) {
  return add<AddCounts>(args, kTwobitMostCounted, stream);
}

Launch twobit_from_counts(const TwobitFromCounts& args, Stream stream) {
  if (args.stripes.n < 0 || args.stripes.stripe <= 0 || !aligned(args.out, 4)) {
    return kInvalid;
  }
  return launch(twobit_scale_counts, pieces(args.stripes.n, kThreads), kThreads, stream, args.stripes, args.exponents,
                args.counts, reinterpret_cast<float*>(args.out));
}

Launch load_twobit() {
  return load(twobit_quantise, twobit_add_records, twobit_add<AddValues>, twobit_add<AddCounts>, twobit_scale_counts);
}

}  // namespace sirtaki::kernels::cuda
