#include "kernels/group_topk/cuda.h"

#include "kernels/device.cuh"
#include "kernels/group_topk/payload.h"
#include "kernels/group_topk/select.cuh"
#include "kernels/launch.cuh"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kLargeThreads = 512;
constexpr unsigned kSumThreads = 256;
constexpr std::int64_t kInRegisters = 4096;

struct Encode {
  Arrays arrays;
  std::byte* values;
  std::byte* offsets;
  std::uint32_t* not_finite;
  std::int64_t n;
  std::int32_t group;
  std::int32_t keep;
  bool vector;
};

// Writes one entry; returns the residual of `a`.
template <class Value, class Offset>
__device__ float put(const Encode& args, std::int64_t entry, std::int32_t offset, float a) {
  const SentBits<Value> number = sent_as<Value>(a);
  as<typename Value::Bits>(args.values)[entry] = number.bits;
  as<Offset>(args.offsets)[entry] = static_cast<Offset>(offset);
  if (!number.sent.finite) {
    *args.not_finite = 1;
  }
  return number.sent.left;
}

// A group of up to 32 kWarps kItems elements, whose values stay in registers between the passes.
template <class Value, class Offset, int kWarps, int kItems>
class RegisterGroup {
 public:
  __device__ RegisterGroup(const Encode& args, std::int64_t group)
      : args_(args),
        first_(group * args.group),
        elements_(static_cast<std::int32_t>(lesser<std::int64_t>(args.n - first_, args.group))),
        keep_(lesser(args.keep, elements_)) {}

  // Encodes a group; `guess` becomes its limit, a good guess for the next group.
  __device__ void encode(std::int64_t group, std::uint32_t& guess, TeamExchange<kWarps>& exchange) {
    const std::int32_t here = first_of_warp();
    args_.arrays.load(first_ + here, elements_ - here, args_.vector, a_);
    std::uint32_t most = 0;
#pragma unroll
    for (const float a : a_) {
      const std::uint32_t key = ref::magnitude_bits(a);
      most = greater(key, most);
    }
    // If there are no more entries than lanes, every lane has a key that reaches the least of their maxima.
    const std::uint32_t low = keep_ <= static_cast<std::int32_t>(kLanes) * kWarps ? exchange.min(most) : 0;
    const TopkBracket bracket{low, exchange.max(most) + 1, low == 0 ? elements_ : 0, guess};
    const TopkLimit limit = topk_limit(bracket, keep_, [&](std::uint32_t probe) {
      std::uint32_t reached = 0;
#pragma unroll
      for (const float a : a_) {
        reached += ref::magnitude_bits(a) >= probe ? 1 : 0;
      }
      return static_cast<std::int32_t>(exchange.sum(reached));
    });
    guess = limit.key;
    take(group * args_.keep, limit, exchange);
    args_.arrays.store(a_, first_ + here, elements_ - here, args_.vector);
  }

 private:
  static constexpr int kRows = kItems / 4;
  static constexpr std::int32_t kRow = 4 * kLanes;

  // The elements of a warp are contiguous; in each row of them, so are those of a lane.
  __device__ static std::int32_t first_of_warp() {
    return kWarps == 1 ? 0 : static_cast<std::int32_t>(warp()) * kRows * kRow;
  }
  __device__ static std::int32_t offset(int row) {
    return first_of_warp() + row * kRow + static_cast<std::int32_t>(4 * lane());
  }

  // Writes the entries, from `entry` on, in the order of the elements.
  __device__ void take(std::int64_t entry, const TopkLimit& limit, TeamExchange<kWarps>& exchange) {
    std::int32_t equal = limit.equal;
    if constexpr (kWarps > 1) {
      entry += exchange.before_this_warp(count(limit, true), count(limit, false), equal);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      take_row(row, limit.key, equal, entry);
    }
  }

  // Returns the number of elements of the warp above the limit, or equal to it.
  __device__ std::int32_t count(const TopkLimit& limit, bool above) const {
    std::uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::uint32_t key = ref::magnitude_bits(a_[i]);
      const bool present = offset(i / 4) + i % 4 < elements_;
      found += (above ? key > limit.key : key == limit.key && present) ? 1 : 0;
    }
    return static_cast<std::int32_t>(warp_sum(found));
  }

  // Takes the elements of a row above the limit, and the first `equal` of those that equal it.
  __device__ void take_row(int row, std::uint32_t limit, std::int32_t& equal, std::int64_t& entry) {
    unsigned taken = 0;  // bits of this lane
    unsigned same = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t key = ref::magnitude_bits(a_[4 * row + j]);
      taken |= (key > limit ? 1U : 0U) << j;
      same |= (key == limit && offset(row) + j < elements_ ? 1U : 0U) << j;
    }
    if (equal > 0) {
      const Ranks ranks = lane_ranks(same);
      const std::int32_t left = equal - ranks.before;
      for (std::int32_t i = 0; i < left && same != 0; ++i, same &= same - 1) {
        taken |= same & (0U - same);
      }
      equal -= lesser(ranks.all, equal);
    }
    const Ranks ranks = lane_ranks(taken);
    std::int64_t at = entry + ranks.before;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((taken >> j & 1U) != 0) {
        a_[4 * row + j] = put<Value, Offset>(args_, at++, offset(row) + j, a_[4 * row + j]);
      }
    }
    entry += ranks.all;
  }

  const Encode& args_;
  std::int64_t first_;
  std::int32_t elements_;
  std::int32_t keep_;
  float a_[kItems];
};

template <class Value, class Offset, int kWarps, int kItems>
__global__ void __launch_bounds__(kThreads) group_topk_in_registers(const Encode args) {
  __shared__ std::uint32_t scratch[2 * kThreads / kLanes];
  constexpr unsigned kTeams = kThreads / kLanes / kWarps;
  TeamExchange<kWarps> exchange(scratch);
  std::uint32_t guess = 0;
  const std::int64_t groups = (args.n + args.group - 1) / args.group;
  for (std::int64_t group = std::int64_t{blockIdx.x} * kTeams + warp() / kWarps; group < groups;
       group += std::int64_t{gridDim.x} * kTeams) {
    RegisterGroup<Value, Offset, kWarps, kItems>(args, group).encode(group, guess, exchange);
  }
}

template <class Value, class Offset>
__global__ void __launch_bounds__(kLargeThreads) group_topk_in_memory(const Encode args) {
  constexpr int kWarps = kLargeThreads / kLanes;
  __shared__ std::uint32_t scratch[2 * kWarps];
  const Arrays& arrays = args.arrays;
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.group; first < args.n;
       first += std::int64_t{gridDim.x} * args.group) {
    const auto elements = static_cast<std::int32_t>(lesser<std::int64_t>(args.n - first, args.group));
    std::uint32_t most = 0;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < elements; i += kLargeThreads) {
      const float a = arrays.element(first + i);
      if (arrays.left != nullptr) {
        arrays.left[first + i] = a;
      }
      const std::uint32_t key = ref::magnitude_bits(a);
      most = greater(key, most);
    }
    const float* values = (arrays.left != nullptr ? arrays.left : arrays.gradient) + first;
    const std::int64_t entry = first / args.group * args.keep;
    const BlockTopk<kWarps> topk{values, elements, lesser(args.keep, elements), most};
    topk.select(scratch, [&](std::int32_t i, std::int32_t position) {
      const float left = put<Value, Offset>(args, entry + position, i, ref::canonical(values[i]));
      if (arrays.left != nullptr) {
        arrays.left[first + i] = left;
      }
    });
  }
}

struct Payloads {
  const std::byte* data[kMostPayloads];
  int count;
};

struct Sum {
  Payloads payloads;
  float* out;
  float divisor;
  std::int64_t n;
  std::int64_t entries;
  std::int32_t group;
  std::int32_t keep;
};

// A tile is some whole groups, or a part of a group larger than a tile.
constexpr std::int32_t kTile = 4096;
struct Tile {
  std::int64_t group;     // the first group
  std::int32_t begin;     // the first element within that group
  std::int32_t elements;  // <= kTile
  std::int32_t entries;   // entries of all groups of the tile

  __device__ Tile(const Sum& args, std::int64_t tile) {
    const std::int32_t parts = (args.group + kTile - 1) / kTile;
    const std::int32_t groups = parts > 1 ? 1 : kTile / args.group;
    group = tile / parts * groups;
    begin = static_cast<std::int32_t>(tile % parts) * kTile;
    const std::int64_t behind = args.n - group * args.group - begin;
    const std::int32_t here = parts > 1 ? lesser(kTile, args.group - begin) : groups * args.group;
    elements = static_cast<std::int32_t>(greater<std::int64_t>(lesser<std::int64_t>(behind, here), 0));
    const std::int64_t entries_behind = args.entries - group * args.keep;
    entries = static_cast<std::int32_t>(lesser(entries_behind, std::int64_t{groups} * args.keep));
  }
  static std::int64_t number(const GroupTopk& how, std::int64_t n) {
    const std::int64_t groups = (n + how.group - 1) / how.group;
    const std::int64_t in_a_tile = how.group > kTile ? 1 : kTile / how.group;
    return (groups + in_a_tile - 1) / in_a_tile * ((how.group + kTile - 1) / kTile);
  }
};

// Adds one payload after the other; the offsets of a payload are unique, so threads never conflict.
template <class Value, class Offset>
__global__ void __launch_bounds__(kSumThreads) group_topk_add(const Sum args, const std::int64_t tiles) {
  __shared__ float sums[kTile];
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Tile tile(args, t);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < tile.elements; i += kSumThreads) {
      sums[i] = 0;
    }
    __syncthreads();
    for (int p = 0; p < args.payloads.count; ++p) {
      const auto* values = as<typename Value::Bits>(args.payloads.data[p]) + tile.group * args.keep;
      const auto* offsets = as<Offset>(args.payloads.data[p] + args.entries * Value::kSize) + tile.group * args.keep;
      for (auto e = static_cast<std::int32_t>(threadIdx.x); e < tile.entries; e += kSumThreads) {
        const std::int32_t at = e / args.keep * args.group + static_cast<std::int32_t>(offsets[e]) - tile.begin;
        if (at >= 0 && at < tile.elements) {
          sums[at] = ref::canonical(sums[at] + Value::decode(values[e]));
        }
      }
      __syncthreads();
    }
    float* const out = args.out + tile.group * args.group + tile.begin;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < tile.elements; i += kSumThreads) {
      out[i] = mean_of(sums[i], args.divisor);
    }
    __syncthreads();
  }
}

template <class Value, class Offset>
Launch encode_as(const Encode& args, Stream stream) {
  const std::int64_t groups = (args.n + args.group - 1) / args.group;
  constexpr std::int64_t kTeams = kThreads / kLanes;
  const std::int64_t blocks = (groups + kTeams - 1) / kTeams;
  if constexpr (sizeof(Offset) == 1) {
    return launch(group_topk_in_registers<Value, Offset, 1, 8>, blocks, kThreads, stream, args);
  } else if (args.group <= 512) {
    return launch(group_topk_in_registers<Value, Offset, 1, 16>, blocks, kThreads, stream, args);
  } else if (args.group <= 1024) {
    return launch(group_topk_in_registers<Value, Offset, 1, 32>, blocks, kThreads, stream, args);
  } else if (args.group <= kInRegisters) {
    return launch(group_topk_in_registers<Value, Offset, 4, 32>, groups, kThreads, stream, args);
  } else {
    return launch(group_topk_in_memory<Value, Offset>, groups, kLargeThreads, stream, args);
  }
}

template <class Value, class Offset>
Launch sum_as(const Sum& args, std::int64_t tiles, Stream stream) {
  return launch(group_topk_add<Value, Offset>, tiles, kSumThreads, stream, args, tiles);
}

bool is_sound(const GroupTopk& how, std::int64_t n) {
  const bool value = how.value == DType::kF32 || how.value == DType::kF16 || how.value == DType::kBF16;
  return value && how.group >= 1 && how.group <= 65536 && how.keep >= 1 && how.keep <= how.group && n >= 0;
}

// Duplicates group_topk_entries(), which is not in the plug-in.
std::int64_t entries_of(const GroupTopk& how, std::int64_t n) {
  return n / how.group * how.keep + std::min<std::int64_t>(n % how.group, how.keep);
}

}  // namespace

Launch group_topk_encode(const GroupTopkEncode& args, Stream stream) {
  if (!is_sound(args.how, args.n) || !is_float(args.arrays) || !aligned(args.payload, 4) ||
      args.not_finite == nullptr) {
    return kInvalid;
  }
  const Launch cleared = clear(args.not_finite, sizeof(*args.not_finite), stream);
  if (!cleared.ok() || args.n == 0) {
    return cleared;
  }
  Launch result;
  with_entry_types(args.how, [&]<class Value, class Offset>() {
    std::byte* const offsets = args.payload + entries_of(args.how, args.n) * std::int64_t{Value::kSize};
    const bool vector = args.how.group % 4 == 0 && is_vector(args.arrays);
    const Encode encode{Arrays(args.arrays), args.payload,  offsets, args.not_finite, args.n,
                        args.how.group,      args.how.keep, vector};
    result = encode_as<Value, Offset>(encode, stream);
  });
  return result;
}

Launch group_topk_sum(const GroupTopkSum& args, Stream stream) {
  if (!is_sound(args.how, args.n) || args.payloads.size() > kMostPayloads || !aligned(args.out, 4) ||
      args.divisor < 1) {
    return kInvalid;
  }
  Sum sum{{},           reinterpret_cast<float*>(args.out), static_cast<float>(args.divisor),
          args.n,       entries_of(args.how, args.n),       args.how.group,
          args.how.keep};
  for (const std::byte* payload : args.payloads) {
    if (!aligned(payload, 4)) {
      return kInvalid;
    }
    sum.payloads.data[sum.payloads.count++] = payload;
  }
  if (args.n == 0) {
    return {};
  }
  Launch result;
  const std::int64_t tiles = Tile::number(args.how, args.n);
  with_entry_types(args.how, [&]<class Value, class Offset>() { result = sum_as<Value, Offset>(sum, tiles, stream); });
  return result;
}

Launch load_group_topk() {
  Launch last;
  for (const DType value : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const std::int32_t group : {256, 65536}) {
      GroupTopk how;
      how.value = value;
      how.group = group;
      with_entry_types(how, [&]<class Value, class Offset>() {
        last = last.ok() ? load(group_topk_add<Value, Offset>) : last;
        if constexpr (sizeof(Offset) == 1) {
          last = last.ok() ? load(group_topk_in_registers<Value, Offset, 1, 8>) : last;
        } else {
          last = last.ok() ? load(group_topk_in_registers<Value, Offset, 1, 16>,
                                  group_topk_in_registers<Value, Offset, 1, 32>,
                                  group_topk_in_registers<Value, Offset, 4, 32>, group_topk_in_memory<Value, Offset>)
                           : last;
        }
      });
    }
  }
  return last;
}

}  // namespace sirtaki::kernels::cuda
