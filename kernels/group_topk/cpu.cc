#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "kernels/group_topk/payload.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/group_topk/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
bool encode_target(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  return ref::group_topk_encode(how, n, arrays, payload);
}

#else

using Lane = PlainLane<float>;
using Float = ref::Plain<float>;

// One group of elements. The key of an element is the bits of its magnitude. `values` is `left` with error feedback,
// else the gradient.
struct Group {
  const std::byte* values;
  std::byte* left;
  std::size_t size;
  std::size_t keep;

  // Loads a vector; lanes after the end of the group are zero.
  F32Vec load(std::size_t i) const {
    const std::byte* from = values + i * sizeof(float);
    const auto a = load_up_to<Lane>(from, size - i);
    return left == nullptr ? canonical(F32Tag(), a) : a;  // accumulate() has written canonical values
  }
  float element(std::size_t i) const { return ref::canonical(Float::load(values + i * sizeof(float))); }
  std::int32_t key(std::size_t i) const { return static_cast<std::int32_t>(ref::magnitude_bits(element(i))); }

  // Returns a mask: bit j is set if the key of element i + j is at least `least`.
  std::uint64_t at_least(std::size_t i, std::int32_t least) const {
    const I32Tag d;
    const auto mask = hn::Not(hn::Gt(hn::Set(d, least), magnitude_bits(load(i))));
    std::uint64_t bits = 0;
    hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
    const std::size_t behind = size - i;
    return behind < hn::Lanes(d) ? bits & ((std::uint64_t{1} << behind) - 1) : bits;
  }
};

// The largest keys of disjoint parts of a group. If `keep` of these maxima reach a bound, at least `keep` elements of
// the group do.
struct Maxima {
  static constexpr std::size_t kCapacity = 1024;
  HWY_ALIGN std::int32_t keys[kCapacity];
  std::size_t count = 0;  // a power of two, whole vectors

  // Enough parts for the bound to lie close below the keep-th largest key, few enough to stay cheap.
  void start(std::size_t keep) {
    count = std::clamp(std::bit_ceil(4 * keep), 4 * hn::Lanes(I32Tag()), kCapacity);
    for (std::size_t i = 0; i < count; i += hn::Lanes(I32Tag())) {
      hn::Store(hn::Zero(I32Tag()), I32Tag(), keys + i);
    }
  }
  void add(std::size_t slot, F32Vec a) {
    const I32Tag d;
    hn::Store(hn::Max(hn::Load(d, keys + slot), magnitude_bits(a)), d, keys + slot);
  }
  std::size_t at_least(std::int32_t least) const {
    const I32Tag d;
    const auto below = hn::Set(d, least - 1);
    std::size_t reached = 0;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      reached += hn::CountTrue(d, hn::Gt(hn::Load(d, keys + i), below));
    }
    return reached;
  }
};

// Writes the sums and finds their maxima. No branch depends on the sums here: a mispredicted one would wait for memory.
void accumulate(const Feedback& arrays, std::size_t size, Maxima& maxima) {
  const F32Tag d;
  const std::size_t step = hn::Lanes(d);
  const std::size_t slots = maxima.count - 1;
  std::size_t i = 0;
  for (; i + step <= size; i += step) {
    const std::size_t at = i * sizeof(float);
    const auto a = canonical(d, hn::Add(Lane::load(arrays.gradient + at), Lane::load(arrays.residual + at)));
    Lane::store(a, arrays.left + at);
    maxima.add(i & slots, a);
  }
  if (i < size) {
    const std::size_t at = i * sizeof(float);
    const auto gradient = load_first<Lane>(arrays.gradient + at, size - i);
    const auto residual = load_first<Lane>(arrays.residual + at, size - i);
    const auto a = canonical(d, hn::Add(gradient, residual));
    store_first<Lane>(a, arrays.left + at, size - i);
    maxima.add(i & slots, a);
  }
}

// Finds the maxima of a group without feedback.
void find_maxima(const Group& group, Maxima& maxima) {
  for (std::size_t i = 0; i < group.size; i += hn::Lanes(F32Tag())) {
    maxima.add(i & (maxima.count - 1), group.load(i));
  }
}

// Finds, from the maxima of a group, a bound that at least `keep` elements reach and few others; 0 if the maxima do not
// suffice. Starts from the bound of the previous group, since neighbouring groups are similar.
class Bound {
 public:
  std::int32_t find(const Maxima& maxima, std::size_t keep) {
    if (maxima.count < keep) {
      return 0;
    }
    const std::size_t most = keep + keep / 4 + 1;
    std::int32_t low = 1;
    std::int32_t high = kAboveAll;
    std::int32_t step = kFirstStep;
    std::int32_t probe = last_;
    while (high - low > 1) {
      const std::size_t reached = maxima.at_least(probe);
      if (reached < keep && low == 1 && high == kAboveAll && maxima.at_least(1) < keep) {
        return 0;
      }
      (reached >= keep ? low : high) = probe;
      if (reached >= keep && reached <= most) {
        break;
      }
      // The steps double until there is a key on both sides; bisection finishes the search.
      if (high == kAboveAll) {
        probe = low + std::min(step, (high - low) / 2);
      } else if (low == 1) {
        probe = high - std::min(step, (high - low) / 2);
      } else {
        probe = low + (high - low) / 2;
      }
      step = std::min(2 * step, 1 << 29);
    }
    last_ = std::max(low, 2);
    return low;
  }

 private:
  static constexpr std::int32_t kAboveAll = 0x7FC00001;  // one above the key of a NaN
  static constexpr std::int32_t kFirstStep = 1 << 18;    // a 32nd of a power of two
  std::int32_t last_ = 0x3F800000;
};

std::size_t count_at_least(const Group& group, std::int32_t least) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < group.size; i += hn::Lanes(I32Tag())) {
    count += static_cast<std::size_t>(std::popcount(group.at_least(i, least)));
  }
  return count;
}

// Selects from any group: finds the keep-th largest key by counting; of the elements with that key, the lowest offsets
// are selected.
void select_by_counting(const Group& group, PayloadWriter& writer) {
  std::int32_t low = 0;
  std::int32_t high = count_at_least(group, 1) < group.keep ? 1 : 0x7FC00001;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (count_at_least(group, middle) >= group.keep ? low : high) = middle;
  }
  std::size_t equal = group.keep - count_at_least(group, high);
  std::size_t left = group.keep;
  for (std::size_t i = 0; left > 0; i += hn::Lanes(I32Tag())) {
    for (std::uint64_t bits = group.at_least(i, low); bits != 0; bits &= bits - 1) {
      const std::size_t offset = i + static_cast<std::size_t>(std::countr_zero(bits));
      const bool is_equal = group.key(offset) == low;
      if (is_equal && equal == 0) {
        continue;
      }
      equal -= is_equal ? 1 : 0;
      const auto entry = static_cast<std::int32_t>(offset);
      writer.put_all({&entry, 1}, group.values, group.left);
      --left;
    }
  }
}

// Ascending offsets and keys of the elements that may be among the largest.
class Candidates {
 public:
  Candidates() { std::iota(lanes_, lanes_ + kLanes, 0); }

  std::size_t count() const { return count_; }
  const std::int32_t* offsets() const { return offsets_; }

  // Returns false if there are too many candidates. `least` is at least 1, so that the zeros after the group are never
  // candidates.
  bool collect(const Group& group, std::int32_t least) {
    const I32Tag d;
    const auto below = hn::Set(d, least - 1);
    const auto first = hn::LoadU(d, lanes_);
    std::size_t found = 0;
    for (std::size_t i = 0; i < group.size && found <= kCapacity; i += hn::Lanes(d)) {
      // Stores without a branch on the mask, which would be mispredicted too often.
      const auto here = magnitude_bits(group.load(i));
      const auto mask = hn::Gt(here, below);
      const auto offset = hn::Add(first, hn::Set(d, static_cast<std::int32_t>(i)));
      hn::StoreU(hn::Compress(offset, mask), d, offsets_ + found);
      hn::StoreU(hn::Compress(here, mask), d, keys_ + found);
      found += hn::CountTrue(d, mask);
    }
    hn::StoreU(hn::Zero(d), d, keys_ + std::min(found, kCapacity));
    least_ = least;
    count_ = found;
    return found <= kCapacity;
  }

  // Keeps the `keep` largest candidates; there are at least as many.
  void reduce_to(std::size_t keep) {
    const std::size_t excess = count_ - keep;
    if (excess == 0) {
      return;
    }
    if ((excess + 1) * count_ <= kFew) {
      return keep_ranks(climb(excess));
    }
    const std::int32_t least = split(keep);
    least != 0 ? keep_keys(least) : keep_ranks(nth_rank(keep));
  }

 private:
  // Ranks are unique even where keys are equal: the lower offset has the higher rank.
  std::uint64_t rank(std::size_t c) const {
    return static_cast<std::uint64_t>(keys_[c]) << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(offsets_[c]));
  }

  // Returns the smallest rank above `excess` others. This is the fastest way while `excess` is small.
  std::uint64_t climb(std::size_t excess) const {
    std::uint64_t below = 0;
    for (std::size_t round = 0; round <= excess; ++round) {
      std::uint64_t smallest = ~std::uint64_t{0};
      for (std::size_t c = 0; c < count_; ++c) {
        smallest = rank(c) > below ? std::min(smallest, rank(c)) : smallest;
      }
      below = smallest;
    }
    return below;
  }

  // Returns a key that exactly `keep` candidates reach, 0 if equal keys prevent it. Alternates interpolation with
  // bisection: counts fall almost evenly with keys, since keys are almost logarithms.
  std::int32_t split(std::size_t keep) const {
    std::int32_t low = least_;
    std::int32_t high = largest() + 1;
    std::size_t from_low = count_;
    std::size_t from_high = 0;
    for (int turn = 0; high - low > 1; ++turn) {
      const auto width = static_cast<std::uint64_t>(high - low);
      const std::uint64_t share = turn % 2 == 0 ? width * (from_low - keep) / (from_low - from_high) : width / 2;
      const std::int32_t probe = low + static_cast<std::int32_t>(std::clamp<std::uint64_t>(share, 1, width - 1));
      const std::size_t reached = keys_at_least(probe);
      if (reached == keep) {
        return probe;
      }
      (reached > keep ? low : high) = probe;
      (reached > keep ? from_low : from_high) = reached;
    }
    return 0;
  }

  std::int32_t largest() const {
    const I32Tag d;
    auto most = hn::Zero(d);
    for (std::size_t c = 0; c < count_; c += hn::Lanes(d)) {
      most = hn::Max(most, hn::LoadU(d, keys_ + c));
    }
    return hn::GetLane(hn::MaxOfLanes(d, most));
  }

  // Counts keys in whole vectors; zeros pad the last one.
  std::size_t keys_at_least(std::int32_t least) const {
    const I32Tag d;
    const auto below = hn::Set(d, least - 1);
    std::size_t reached = 0;
    for (std::size_t c = 0; c < count_; c += hn::Lanes(d)) {
      reached += hn::CountTrue(d, hn::Gt(hn::LoadU(d, keys_ + c), below));
    }
    return reached;
  }

  std::uint64_t nth_rank(std::size_t keep) {
    for (std::size_t c = 0; c < count_; ++c) {
      ranks_[c] = rank(c);
    }
    std::nth_element(ranks_, ranks_ + keep - 1, ranks_ + count_, std::greater<>());
    return ranks_[keep - 1];
  }

  // Moves the keys that stay to the front, so that none is overwritten before it is read.
  void keep_keys(std::int32_t least) {
    const I32Tag d;
    const auto below = hn::Set(d, least - 1);
    std::size_t kept = 0;
    for (std::size_t c = 0; c < count_; c += hn::Lanes(d)) {
      const auto mask = hn::Gt(hn::LoadU(d, keys_ + c), below);
      hn::StoreU(hn::Compress(hn::LoadU(d, offsets_ + c), mask), d, offsets_ + kept);
      kept += hn::CountTrue(d, mask);
    }
    count_ = kept;
  }
  void keep_ranks(std::uint64_t least) {
    std::size_t kept = 0;
    for (std::size_t c = 0; c < count_; ++c) {
      const bool stays = rank(c) >= least;
      offsets_[kept] = offsets_[c];
      kept += stays ? 1 : 0;
    }
    count_ = kept;
  }

  static constexpr std::size_t kCapacity = 1024;
  static constexpr std::size_t kLanes = HWY_MAX_BYTES / sizeof(std::int32_t);
  static constexpr std::size_t kFew = 256;
  std::int32_t lanes_[kLanes];  // 0, 1, 2, ...
  // Stores write whole vectors, also past the last element.
  std::int32_t offsets_[kCapacity + 2 * kLanes];
  std::int32_t keys_[kCapacity + 2 * kLanes];
  std::uint64_t ranks_[kCapacity];
  std::int32_t least_ = 0;
  std::size_t count_ = 0;
};

void select(const Group& group, std::int32_t bound, Candidates& candidates, PayloadWriter& writer) {
  if (bound == 0 || !candidates.collect(group, bound)) {
    return select_by_counting(group, writer);
  }
  candidates.reduce_to(group.keep);
  writer.put_all({candidates.offsets(), candidates.count()}, group.values, group.left);
}

bool encode_target(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  PayloadWriter writer(how, static_cast<std::size_t>(group_topk_entries(how, n)), payload);
  Maxima maxima;
  Bound bound;
  Candidates candidates;
  for_each_group(how, static_cast<std::size_t>(n), [&](const GroupEntries& at) {
    const std::size_t byte = at.first * sizeof(float);
    Group group{arrays.gradient + byte, nullptr, at.elements, at.entries};
    maxima.start(at.entries);
    if (arrays.residual == nullptr) {
      find_maxima(group, maxima);
    } else {
      group.left = arrays.left + byte;
      accumulate({group.values, arrays.residual + byte, group.left}, at.elements, maxima);
      group.values = group.left;
    }
    select(group, bound.find(maxima, at.entries), candidates, writer);
  });
  return writer.finite();
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(encode_target);

bool group_topk_encode(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  SRT_CHECK(n >= 0 && arrays.valid());
  return HWY_DYNAMIC_DISPATCH(encode_target)(how, n, arrays, payload);
}

}  // namespace sirtaki::kernels
#endif
