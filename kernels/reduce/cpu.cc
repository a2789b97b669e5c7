#include <cstring>

#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
void reduce_target(ReduceOp op, DType dtype, std::span<const std::byte* const> from, std::byte* out, std::size_t n) {
  ref::reduce(op, dtype, from, out, static_cast<std::int64_t>(n));
}
void average_target(DType dtype, std::span<const std::byte* const> from, std::byte* out, std::size_t n, float count) {
  ref::average(dtype, from, out, static_cast<std::int64_t>(n), count);
}

#else

struct Sum {
  template <class D, class V>
  static V apply(D /*d*/, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D, class V>
  static V apply(D d, V a, V b) {
    if constexpr (sizeof(hn::TFromD<D>) == 1) {
      return bytes(d, a, b);
    } else if constexpr (sizeof(hn::TFromD<D>) == 8 && !hwy::IsFloat<hn::TFromD<D> >()) {
      return words(d, a, b);
    } else {
      return hn::Mul(a, b);
    }
  }

 private:
  // Highway does not multiply bytes, so even and odd bytes are multiplied as 16-bit numbers.
  template <class D, class V>
  static V bytes(D d, V a, V b) {
    const hn::Repartition<std::uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00FFU));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(d, hn::Or(even, odd));
  }
  // Schoolbook multiplication with 32-bit digits; the highest product lies above 64 bits.
  template <class D, class V>
  static V words(D d, V a, V b) {
    const hn::Repartition<std::uint32_t, D> d32;
    const auto a32 = hn::BitCast(d32, a);
    const auto b32 = hn::BitCast(d32, b);
    const auto a_high = hn::BitCast(d32, hn::ShiftRight<32>(a));
    const auto b_high = hn::BitCast(d32, hn::ShiftRight<32>(b));
    const auto cross = hn::Add(hn::MulEven(a32, b_high), hn::MulEven(a_high, b32));
    return hn::BitCast(d, hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(cross)));
  }
};

// Same choice as ref.cc: b if it is smaller or NaN.
struct Min {
  template <class D, class V>
  static V apply(D /*d*/, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D> >()) {
      return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class D, class V>
  static V apply(D /*d*/, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D> >()) {
      return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct Or {
  template <class D, class V>
  static V apply(D /*d*/, V a, V b) {
    return hn::Or(a, b);
  }
};

struct And {
  template <class D, class V>
  static V apply(D /*d*/, V a, V b) {
    return hn::And(a, b);
  }
};

// Loads any byte but 0 as 1.
struct BoolLane : PlainLane<std::uint8_t> {
  static hn::Vec<Tag> load(const std::byte* from) {
    return hn::Min(PlainLane<std::uint8_t>::load(from), hn::Set(Tag(), std::uint8_t{1}));
  }
};

struct Sources {
  const std::byte* const* data;
  std::size_t count;
};

// The last operation on the reduction of all sources, before rounding.
struct AsItIs {
  template <class V>
  V operator()(V v) const {
    return v;
  }
};
struct DividedBy {
  float count;
  F32Vec operator()(F32Vec v) const { return hn::Div(v, hn::Set(F32Tag(), count)); }
};

// Reduces four vectors at a time, so that the loop over the sources costs little beside the loads.
template <class Lane, class Op, class Last>
std::size_t reduce_quads(Sources sources, std::byte* out, std::size_t n, Last last) {
  const typename Lane::Tag d;
  const std::size_t lanes_per_quad = 4 * lanes<Lane>();
  const std::size_t step = lanes<Lane>() * Lane::kSize;
  std::size_t i = 0;
  for (; i + lanes_per_quad <= n; i += lanes_per_quad) {
    const std::size_t at = i * Lane::kSize;
    const std::byte* from = sources.data[0] + at;
    auto v0 = Lane::load(from);
    auto v1 = Lane::load(from + step);
    auto v2 = Lane::load(from + 2 * step);
    auto v3 = Lane::load(from + 3 * step);
    for (std::size_t s = 1; s < sources.count; ++s) {
      from = sources.data[s] + at;
      v0 = Op::apply(d, v0, Lane::load(from));
      v1 = Op::apply(d, v1, Lane::load(from + step));
      v2 = Op::apply(d, v2, Lane::load(from + 2 * step));
      v3 = Op::apply(d, v3, Lane::load(from + 3 * step));
    }
    Lane::store(canonical(d, last(v0)), out + at);
    Lane::store(canonical(d, last(v1)), out + at + step);
    Lane::store(canonical(d, last(v2)), out + at + 2 * step);
    Lane::store(canonical(d, last(v3)), out + at + 3 * step);
  }
  return i;
}

template <class Lane, class Op, class Last = AsItIs>
void run(Sources sources, std::byte* out, std::size_t n, Last last = {}) {
  const typename Lane::Tag d;
  std::size_t i = reduce_quads<Lane, Op>(sources, out, n, last);
  for (; i + lanes<Lane>() <= n; i += lanes<Lane>()) {
    const std::size_t at = i * Lane::kSize;
    auto v = Lane::load(sources.data[0] + at);
    for (std::size_t s = 1; s < sources.count; ++s) {
      v = Op::apply(d, v, Lane::load(sources.data[s] + at));
    }
    Lane::store(canonical(d, last(v)), out + at);
  }
  if (i == n) {
    return;
  }
  const std::size_t at = i * Lane::kSize;
  auto v = load_first<Lane>(sources.data[0] + at, n - i);
  for (std::size_t s = 1; s < sources.count; ++s) {
    v = Op::apply(d, v, load_first<Lane>(sources.data[s] + at, n - i));
  }
  store_first<Lane>(canonical(d, last(v)), out + at, n - i);
}

// ModularLane: the unsigned lanes for operations on signed numbers that need only the low bits.
template <class Lane, class ModularLane = Lane>
void run_op(ReduceOp op, Sources sources, std::byte* out, std::size_t n) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return run<ModularLane, Sum>(sources, out, n);
    case ReduceOp::kProduct:
      return run<ModularLane, Product>(sources, out, n);
    case ReduceOp::kMin:
      return run<Lane, Min>(sources, out, n);
    case ReduceOp::kMax:
      return run<Lane, Max>(sources, out, n);
    case ReduceOp::kAdasum:
      break;
  }
}

void run_bool(ReduceOp op, Sources sources, std::byte* out, std::size_t n) {
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kMax;
  any ? run<BoolLane, Or>(sources, out, n) : run<BoolLane, And>(sources, out, n);
}

void reduce_target(ReduceOp op, DType dtype, std::span<const std::byte* const> from, std::byte* out, std::size_t n) {
  const Sources sources{from.data(), from.size()};
  switch (dtype) {
    case DType::kU8:
      return run_op<PlainLane<std::uint8_t> >(op, sources, out, n);
    case DType::kI8:
      return run_op<PlainLane<std::int8_t>, PlainLane<std::uint8_t> >(op, sources, out, n);
    case DType::kU16:
      return run_op<PlainLane<std::uint16_t> >(op, sources, out, n);
    case DType::kI16:
      return run_op<PlainLane<std::int16_t>, PlainLane<std::uint16_t> >(op, sources, out, n);
    case DType::kI32:
      return run_op<PlainLane<std::int32_t>, PlainLane<std::uint32_t> >(op, sources, out, n);
    case DType::kI64:
      return run_op<PlainLane<std::int64_t>, PlainLane<std::uint64_t> >(op, sources, out, n);
    case DType::kF16:
      return run_op<F16Lane>(op, sources, out, n);
    case DType::kBF16:
      return run_op<BF16Lane>(op, sources, out, n);
    case DType::kF32:
      return run_op<PlainLane<float> >(op, sources, out, n);
    case DType::kF64:
      return run_op<PlainLane<double> >(op, sources, out, n);
    case DType::kBool:
      return run_bool(op, sources, out, n);
  }
}

void average_target(DType dtype, std::span<const std::byte* const> from, std::byte* out, std::size_t n, float count) {
  const Sources sources{from.data(), from.size()};
  dtype == DType::kF16 ? run<F16Lane, Sum>(sources, out, n, DividedBy{count})
                       : run<BF16Lane, Sum>(sources, out, n, DividedBy{count});
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(reduce_target);
HWY_EXPORT(average_target);

void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  SRT_CHECK(!sources.empty() && n >= 0 && op != ReduceOp::kAdasum);
  if (n == 0) {
    return;
  }
  if (sources.size() == 1) {
    std::memmove(out, sources[0], static_cast<std::size_t>(n) * dtype_size(dtype));
    return;
  }
  HWY_DYNAMIC_DISPATCH(reduce_target)(op, dtype, sources, out, static_cast<std::size_t>(n));
}

void average(DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, double count) {
  SRT_CHECK(!sources.empty() && n >= 0 && count > 0 && dtype != DType::kBool);
  if (dtype != DType::kF16 && dtype != DType::kBF16) {
    reduce(ReduceOp::kSum, dtype, sources, out, n);
    divide_by(dtype, out, n, static_cast<std::int64_t>(count));
  } else if (n > 0) {
    HWY_DYNAMIC_DISPATCH(average_target)
    (dtype, sources, out, static_cast<std::size_t>(n), static_cast<float>(count));
  }
}

}  // namespace sirtaki::kernels
#endif
