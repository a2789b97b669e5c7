#include "kernels/threshold_select/cuda.h"

#include "kernels/device.cuh"
#include "kernels/group_topk/select.cuh"
#include "kernels/half/sent.h"
#include "kernels/launch.cuh"
#include "kernels/sparse_sum/payload.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr std::int32_t kTile = static_cast<std::int32_t>(kSparseTile);
// The elements of a warp are contiguous, in rows of one element per lane.
constexpr int kRows = kTile / static_cast<std::int32_t>(kThreads);
constexpr std::uint32_t kBins = 2048;
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;

// Selects the elements with a larger key, and the first `equal` of those with this key.
struct State {
  std::uint32_t key;
  std::uint32_t equal;
  // 1 in a search, for a rank or because more elements reach the threshold than fit: `key` holds its upper bits so far,
  // `equal` the rank among the keys with these bits
  std::uint32_t searching;
  std::uint32_t entries;
  std::uint32_t histogram[kBins];
};
struct Tile {
  std::uint32_t above;  // elements with a larger key
  std::uint32_t equal;  // elements with this key; later the number of them that is sent
  std::uint32_t first;  // index of the first entry
};
static_assert(sizeof(State) == kThresholdState && sizeof(Tile) == kThresholdTile);

struct Encode {
  Arrays arrays;
  const float* values;  // a, once it has been written; the gradient without feedback
  std::int64_t n;
  std::int64_t tiles;
  std::uint32_t threshold;  // 0: that of `rank`
  std::uint32_t rank;
  std::uint32_t capacity;
  std::uint16_t* payload;  // beginning with the number of entries
  std::int64_t halves;     // size of the payload in units of 16 bits
  std::uint16_t* counts;
  std::uint16_t* payload_values;
  State* state;
  Tile* tile;
  ThresholdFound* found;
};

__device__ std::uint32_t key_of(float value) {
  return ref::magnitude_bits(ref::canonical(value));
}

// Calls body(element, value) for the elements of a tile, row by row; past the end of the array, with its length and 0.
template <class Values, class Body>
__device__ void for_each_row(const Encode& args, std::int64_t tile, Values values, Body body) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const std::int64_t i = tile * kTile + static_cast<std::int32_t>((warp() * kRows + row) * kLanes + lane());
    body(lesser(i, args.n), i < args.n ? values(i) : 0.0F);
  }
}

// Writes the sums to `left`.
__global__ void __launch_bounds__(kThreads) threshold_accumulate(const Encode args) {
  for (std::int64_t i = first_thread(); i < args.n; i += all_threads()) {
    args.arrays.left[i] = args.arrays.element(i);
  }
}

// Prepares the search for the key of a rank. Runs as one block.
__global__ void __launch_bounds__(kThreads) threshold_seek(const Encode args) {
  for (std::uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
    args.state->histogram[bin] = 0;
  }
  if (threadIdx.x == 0) {
    args.state->searching = 1;
    args.state->key = 0;
    args.state->equal = args.rank;
  }
}

// Counts the elements of each tile that reach the threshold. kFirst: the sums are not in memory yet.
template <bool kFirst>
__global__ void __launch_bounds__(kThreads) threshold_reach(const Encode args) {
  __shared__ std::uint32_t scratch[kWarps];
  const std::uint32_t threshold = kFirst ? args.threshold : greater(args.state->key, 1U);
  for (std::int64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    std::uint32_t reached = 0;
    for_each_row(
        args, tile, [&](std::int64_t i) { return kFirst ? args.arrays.element(i) : args.values[i]; },
        [&](std::int64_t i, float a) {
          if (kFirst && args.arrays.left != nullptr && i < args.n) {
            args.arrays.left[i] = a;
          }
          reached += key_of(a) >= threshold ? 1 : 0;
        });
    const Sums sums = block_sums(reached, scratch);
    if (threadIdx.x == 0) {
      args.tile[tile] = Tile{sums.all, 0, 0};
    }
  }
}

// Decides whether all elements that reach the threshold fit. Runs as one block.
__global__ void __launch_bounds__(kThreads) threshold_decide(const Encode args) {
  __shared__ std::uint32_t scratch[kWarps];
  std::uint32_t reached = 0;
  for (std::int64_t tile = threadIdx.x; tile < args.tiles; tile += kThreads) {
    reached += args.tile[tile].above;
  }
  const std::uint32_t wanted = block_sums(reached, scratch).all;
  for (std::uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
    args.state->histogram[bin] = 0;
  }
  if (threadIdx.x == 0) {
    State& state = *args.state;
    const std::uint32_t threshold = args.rank == 0 ? args.threshold : state.key;
    const bool fits = wanted <= args.capacity;
    state.searching = !fits && args.capacity > 0 ? 1 : 0;
    // No key is above the largest word.
    state.key = fits ? greater(threshold, 1U) - 1 : (state.searching != 0 ? 0 : ~0U);
    state.equal = state.searching != 0 ? args.capacity : 0;
    *args.found = ThresholdFound{0, wanted, std::bit_cast<float>(threshold), args.rank == 0 ? 0U : 1U};
  }
}

// Counts, among the keys that begin with the bits found so far, each value of the next bits.
template <int kBits, int kShift>
__global__ void __launch_bounds__(kThreads) threshold_histogram(const Encode args) {
  __shared__ std::uint32_t bins[kBins];
  if (args.state->searching == 0) {
    return;
  }
  for (std::uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
    bins[bin] = 0;
  }
  __syncthreads();
  const std::uint32_t prefix = args.state->key;
  for (std::int64_t i = first_thread(); i < args.n; i += all_threads()) {
    const std::uint32_t bits = key_of(args.values[i]) >> kShift;
    if (bits >> kBits == prefix) {
      atomicAdd(&bins[bits & ((1U << kBits) - 1)], 1U);
    }
  }
  __syncthreads();
  for (std::uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
    if (bins[bin] != 0) {
      atomicAdd(&args.state->histogram[bin], bins[bin]);
    }
  }
}

// Finds the bin of the element with the wanted rank, counted from the largest key. Runs as one block; a thread has
// consecutive bins, the first thread the largest ones.
template <int kBits>
__global__ void __launch_bounds__(kThreads) threshold_find(const Encode args) {
  __shared__ std::uint32_t scratch[kWarps];
  constexpr std::uint32_t kEach = kBins / kThreads;
  State& state = *args.state;
  if (state.searching == 0) {
    return;
  }
  const std::uint32_t place = state.equal;
  const std::uint32_t prefix = state.key;
  const std::uint32_t last = kBins - 1 - threadIdx.x * kEach;
  std::uint32_t own = 0;
  for (std::uint32_t b = 0; b < kEach; ++b) {
    own += state.histogram[last - b];
  }
  std::uint32_t before = block_sums(own, scratch).before;
  for (std::uint32_t b = 0; b < kEach; ++b) {
    const std::uint32_t here = state.histogram[last - b];
    if (before < place && place <= before + here) {
      state.key = prefix << kBits | (last - b);
      state.equal = place - before;
    }
    before += here;
    state.histogram[last - b] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) threshold_count(const Encode args) {
  __shared__ std::uint32_t scratch[kWarps];
  if (args.state->searching == 0) {
    return;
  }
  const std::uint32_t limit = args.state->key;
  for (std::int64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    std::uint32_t found = 0;
    for_each_row(
        args, tile, [&](std::int64_t i) { return args.values[i]; },
        [&](std::int64_t i, float a) {
          const std::uint32_t key = key_of(a);
          found += key > limit ? 1U << 16 : 0;
          found += key == limit && i < args.n ? 1 : 0;
        });
    const Sums sums = block_sums(found, scratch);
    if (threadIdx.x == 0) {
      args.tile[tile] = Tile{sums.all >> 16, sums.all & 0xFFFFU, 0};
    }
  }
}

// Computes the first entry of each tile. Runs as one block.
__global__ void __launch_bounds__(kThreads) threshold_scan(const Encode args) {
  __shared__ std::uint32_t scratch[kWarps];
  // With a capacity of zero, nothing is sent whatever the counts are.
  const bool nothing = args.state->key == ~0U;
  const std::uint32_t quota = args.state->equal;
  std::uint32_t equal_before = 0;
  std::uint32_t entries = 0;
  for (std::int64_t begin = 0; begin < args.tiles; begin += kThreads) {
    const std::int64_t t = begin + threadIdx.x;
    Tile tile = t < args.tiles && !nothing ? args.tile[t] : Tile{0, 0, 0};
    const Sums equals = block_sums(tile.equal, scratch);
    const std::uint32_t seen = equal_before + equals.before;
    tile.equal = lesser(tile.equal, quota - lesser(quota, seen));
    const Sums all = block_sums(tile.above + tile.equal, scratch);
    tile.first = entries + all.before;
    if (t < args.tiles) {
      args.tile[t] = tile;
      args.counts[t] = static_cast<std::uint16_t>(tile.above + tile.equal);
    }
    equal_before += equals.all;
    entries += all.all;
  }
  if (threadIdx.x == 0) {
    args.state->entries = entries;
  }
}

// Writes the entries of one warp of a tile.
template <class Value>
class Writer {
 public:
  __device__ Writer(const Encode& args, std::int64_t begin, std::int64_t entry)
      : args_(args),
        begin_(begin),
        entry_(entry),
        offsets_(args.payload_values + args.state->entries * static_cast<std::int64_t>(sizeof(Bits) / 2)) {}

  // Writes the elements of the flagged lanes, in order.
  __device__ void put(bool taken, std::int64_t element, float a) {
    const unsigned ballot = __ballot_sync(kAll, taken);
    if (taken) {
      const std::int64_t at = entry_ + __popc(ballot & lanes_below());
      const SentBits<Value> number = sent_as<Value>(ref::canonical(a));
      store_bits(number.bits, args_.payload_values + at * static_cast<std::int64_t>(sizeof(Bits) / 2));
      offsets_[at] = static_cast<std::uint16_t>(element - begin_);
      if (args_.arrays.left != nullptr) {
        args_.arrays.left[element] = number.sent.left;
      }
      if (!number.sent.finite) {
        args_.found->not_finite = 1;
      }
    }
    entry_ += __popc(ballot);
  }

 private:
  using Bits = typename Value::Bits;

  const Encode& args_;
  std::int64_t begin_;
  std::int64_t entry_;
  std::uint16_t* offsets_;
};

template <class Value>
__global__ void __launch_bounds__(kThreads) threshold_write(const Encode args) {
  __shared__ std::uint32_t scratch[2 * kWarps];
  TeamExchange<kWarps> exchange(scratch);
  const std::uint32_t limit = args.state->key;
  for (std::int64_t t = blockIdx.x; t < args.tiles; t += gridDim.x) {
    const Tile tile = args.tile[t];
    float a[kRows];
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    int row = 0;
    for_each_row(
        args, t, [&](std::int64_t i) { return args.values[i]; },
        [&](std::int64_t i, float value) {
          a[row++] = value;
          above += key_of(value) > limit ? 1 : 0;
          equal += key_of(value) == limit && i < args.n ? 1 : 0;
        });
    auto quota = static_cast<std::int32_t>(tile.equal);
    const std::int32_t before = exchange.before_this_warp(static_cast<std::int32_t>(warp_sum(above)),
                                                          static_cast<std::int32_t>(warp_sum(equal)), quota);
    Writer<Value> writer(args, t * kTile, std::int64_t{tile.first} + before);
    row = 0;
    for_each_row(
        args, t, [&](std::int64_t) { return a[row]; },
        [&](std::int64_t i, float value) {
          const std::uint32_t key = key_of(value);
          bool taken = key > limit && tile.above > 0;
          if (quota > 0) {
            const bool same = key == limit && i < args.n;
            const unsigned ballot = __ballot_sync(kAll, same);
            taken = taken || (same && __popc(ballot & lanes_below()) < quota);
            quota -= lesser(__popc(ballot), quota);
          }
          writer.put(taken, i, value);
          ++row;
        });
  }
}

// Writes the number of entries, and zeros behind the last one.
template <class Value>
__global__ void __launch_bounds__(kThreads) threshold_finish(const Encode args) {
  const std::uint32_t entries = args.state->entries;
  if (first_thread() == 0) {
    args.payload[0] = static_cast<std::uint16_t>(entries);
    args.payload[1] = static_cast<std::uint16_t>(entries >> 16);
  }
  constexpr std::int64_t kHalves = sizeof(typename Value::Bits) / 2 + 1;
  const std::int64_t used = args.payload_values - args.payload + entries * kHalves;
  for (std::int64_t i = used + first_thread(); i < args.halves; i += all_threads()) {
    args.payload[i] = 0;
  }
}

template <int kBits, int kShift>
Launch refine(const Encode& args, Launch before, Stream stream) {
  if (!before.ok()) {
    return before;
  }
  const Launch counted = launch(threshold_histogram<kBits, kShift>, pieces(args.n, kTile), kThreads, stream, args);
  return counted.ok() ? launch(threshold_find<kBits>, 1, kThreads, stream, args) : counted;
}

// Queues the radix selection, whose kernels return at once if nothing is searched, which only the device knows.
Launch search(const Encode& args, Launch before, Stream stream) {
  return refine<10, 0>(args, refine<10, 10>(args, refine<11, 20>(args, before, stream), stream), stream);
}

// Queues the kernels that count the elements which reach the threshold, and before that those that find it.
Launch reach(const Encode& args, Stream stream) {
  if (args.rank == 0) {
    return launch(threshold_reach<true>, args.tiles, kThreads, stream, args);
  }
  Launch last;
  if (args.arrays.left != nullptr) {
    last = launch(threshold_accumulate, pieces(args.n, kThreads), kThreads, stream, args);
  }
  last = last.ok() ? launch(threshold_seek, 1, kThreads, stream, args) : last;
  last = search(args, last, stream);
  return last.ok() ? launch(threshold_reach<false>, args.tiles, kThreads, stream, args) : last;
}

template <class Value>
Launch write_as(const Encode& args, Stream stream) {
  const Launch written = launch(threshold_write<Value>, args.tiles, kThreads, stream, args);
  return written.ok() ? launch(threshold_finish<Value>, pieces(args.halves, kThreads), kThreads, stream, args)
                      : written;
}

Launch run(const Encode& args, DType value, Stream stream) {
  Launch last = reach(args, stream);
  last = last.ok() ? launch(threshold_decide, 1, kThreads, stream, args) : last;
  last = search(args, last, stream);
  last = last.ok() ? launch(threshold_count, args.tiles, kThreads, stream, args) : last;
  last = last.ok() ? launch(threshold_scan, 1, kThreads, stream, args) : last;
  if (last.ok()) {
    with_value_type(value, [&]<class Value>() { last = write_as<Value>(args, stream); });
  }
  return last;
}

}  // namespace

Launch threshold_select(const ThresholdEncode& args, Stream stream) {
  const bool value = args.how.value == DType::kF32 || args.how.value == DType::kF16 || args.how.value == DType::kBF16;
  if (!value || args.rank < 0 || args.rank > args.n || (args.rank == 0 && !(args.how.threshold > 0)) ||
      args.how.capacity < 0 || args.n < 0 || args.n > kMostElements || !is_float(args.arrays) ||
      args.found == nullptr || !aligned(args.payload, 2) || args.payload_bytes % 2 != 0 || !aligned(args.scratch, 8)) {
    return kInvalid;
  }
  const std::int64_t most = lesser(args.how.capacity, args.n);
  const std::int64_t tiles = pieces(args.n, kTile);
  const std::int64_t each = 2 + (args.how.value == DType::kF32 ? 4 : 2);  // an offset and a value
  if (static_cast<std::int64_t>(args.payload_bytes) < 4 + 2 * tiles + most * each) {
    return kInvalid;
  }
  const Arrays arrays(args.arrays);
  auto* const payload = reinterpret_cast<std::uint16_t*>(args.payload);
  auto* const counts = payload + 2;
  const Encode encode{arrays,
                      arrays.left != nullptr ? arrays.left : arrays.gradient,
                      args.n,
                      tiles,
                      args.rank == 0 ? ref::magnitude_bits(args.how.threshold) : 0,
                      static_cast<std::uint32_t>(args.rank),
                      static_cast<std::uint32_t>(most),
                      payload,
                      static_cast<std::int64_t>(args.payload_bytes / 2),
                      counts,
                      counts + tiles,
                      reinterpret_cast<State*>(args.scratch),
                      reinterpret_cast<Tile*>(args.scratch + sizeof(State)),
                      args.found};
  return run(encode, args.how.value, stream);
}

Launch load_threshold_select() {
  Launch last = load(threshold_accumulate, threshold_seek, threshold_reach<true>, threshold_reach<false>,
                     threshold_decide, threshold_histogram<11, 20>, threshold_find<11>, threshold_histogram<10, 10>,
                     threshold_histogram<10, 0>, threshold_find<10>, threshold_count, threshold_scan);
  for (const DType value : {DType::kF16, DType::kBF16, DType::kF32}) {
    with_value_type(
        value, [&]<class Value>() { last = last.ok() ? load(threshold_write<Value>, threshold_finish<Value>) : last; });
  }
  return last;
}

}  // namespace sirtaki::kernels::cuda
