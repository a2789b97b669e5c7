#include "compression/codecs/threshold_sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "compression/codecs/factories.h"
#include "compression/codecs/momentum.h"
#include "compression/device_coding.h"
#include "compression/params.h"
#include "kernels/kth_magnitude/kth_magnitude.h"
#include "kernels/reduce/reduce.h"
#include "kernels/sparse_sum/sparse_sum.h"
#include "kernels/threshold_select/threshold_select.h"
#include "runtime/base/check.h"
#include "runtime/base/wire.h"

namespace sirtaki::compression {
namespace {

using FloatLimits = std::numeric_limits<float>;
using Count = kernels::ref::Plain<std::uint32_t>;

constexpr std::int64_t kMostElements = std::int64_t{1} << 31;
constexpr std::int64_t kMostUses = 1'000'000;
constexpr float kControl = 1.1F;

// The number of elements to send on average, and the largest number that a payload holds.
struct Room {
  std::int64_t wanted;
  std::int64_t capacity;
};

Room room_of(std::int64_t density, std::int64_t numel) {
  const std::int64_t wanted = std::max<std::int64_t>(1, (numel * density + params::kOne / 2) / params::kOne);
  return {wanted, std::min(numel, (5 * wanted + 3) / 4)};
}

std::size_t payload_of(DType value, std::int64_t numel, const Room& room) {
  return Count::kSize + kernels::sparse_bytes(value, numel, room.capacity);
}

class ThresholdSparseCoder final : public Coder, private DeviceCoding {
 public:
  ThresholdSparseCoder(Params params, std::int64_t numel)
      : numel_(numel),
        density_(params[params::kDensity]),
        reestimate_(params[params::kReestimate]),
        value_(value_dtype(params)),
        warm_up_(warm_up_of(params)),
        room_(room_of(density_, numel)),
        momentum_(params, numel) {}

  void at_step(std::uint64_t step) override {
    const Room room = room_of(warm_up_.at(step, density_), numel_);
    if (room.wanted != room_.wanted) {
      // Another density needs another threshold.
      threshold_ = 0;
      room_ = room;
    }
  }

  std::size_t payload_bytes(std::int64_t numel) const override {
    SRT_CHECK(numel == numel_);
    return payload_of(value_, numel_, room_);
  }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    SRT_CHECK(piece.numel == numel_);
    const kernels::Feedback steps = momentum_.step(piece, arrays);
    if (estimates()) {
      threshold_ = exact_threshold(steps);
    }
    std::byte* const entries = payload.data() + Count::kSize;
    const kernels::Selected selected = kernels::threshold_select(selection(), numel_, steps, entries);
    Count::store(static_cast<std::uint32_t>(selected.entries), payload.data());
    const Bytes unused = payload.subspan(Count::kSize + kernels::sparse_bytes(value_, numel_, selected.entries));
    std::fill(unused.begin(), unused.end(), std::byte{0});
    // Momentum of sent elements is stale, unless all are sent (plain SGD with momentum).
    if (momentum_.on() && room_.wanted < numel_) {
      kernels::sparse_clear(value_, numel_, {entries, selected.entries}, momentum_.at(0));
    }
    follow(selected.wanted);
  }

  Status check(const Piece& /*piece*/, ConstBytes payload) const override {
    const kernels::SparsePayload entries = entries_of(payload.data());
    const bool valid = entries.entries <= room_.capacity && kernels::sparse_valid(value_, numel_, entries);
    return valid ? Status() : impossible_payload("a number of entries or an offset");
  }

  void sum(const Piece& /*piece*/, std::span<const std::byte* const> payloads, std::byte* out) const override {
    std::vector<kernels::SparsePayload> all(payloads.size());
    std::transform(payloads.begin(), payloads.end(), all.begin(), entries_of);
    kernels::sparse_sum(value_, numel_, all, out);
  }

  CoderState state() const override {
    WireWriter own;
    own.put(threshold_);
    own.put(room_.wanted);
    own.put(uses_);
    return {momentum_.values(), std::move(own).take()};
  }

  void restore(const CoderState& state) override {
    momentum_.restore(state.momentum);
    WireReader own(state.own);
    const auto threshold = own.get<float>();
    const auto wanted = own.get<std::int64_t>();
    const auto uses = own.get<std::int64_t>();
    if (own.finish("a threshold").ok() && std::isfinite(threshold) && threshold >= 0 && uses >= 0) {
      // A threshold for another density does not apply.
      threshold_ = wanted == room_.wanted ? threshold : 0;
      uses_ = uses;
    }
  }

  // Momentum is in host memory.
  DeviceCoding* on_device() override { return momentum_.on() ? nullptr : this; }

 private:
  std::size_t scratch_bytes(std::int64_t numel, std::size_t payloads) const override {
    return std::max(kernels::cuda::threshold_scratch_bytes(numel),
                    kernels::cuda::sparse_scratch_bytes(numel, payloads));
  }
  kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                               const DeviceOutput& out) const override {
    SRT_CHECK(piece.numel == numel_);
    auto* const found = reinterpret_cast<kernels::cuda::ThresholdFound*>(out.note);
    return queue.kernels.threshold_select({selection(), estimates() ? room_.wanted : 0, numel_, arrays, out.payload,
                                           payload_bytes(numel_), found, out.scratch},
                                          queue.stream);
  }
  void encoded(const DeviceNote& note) override {
    static_assert(offsetof(kernels::cuda::ThresholdFound, not_finite) == offsetof(DeviceNote, not_finite));
    const auto found = std::bit_cast<kernels::cuda::ThresholdFound>(note);
    if (found.exact != 0) {
      threshold_ = found.threshold;
    }
    follow(found.wanted);
  }
  kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& /*piece*/, const DeviceSum& sum) const override {
    auto* const firsts = reinterpret_cast<std::uint32_t*>(sum.scratch);
    return queue.kernels.sparse_sum({value_, numel_, sum.payloads, sum.out, firsts, sum.divisor}, queue.stream);
  }

  // Returns true if the next encoding uses an exact threshold.
  bool estimates() const { return room_.wanted < numel_ && (threshold_ == 0 || uses_ % reestimate_ == 0); }
  // A threshold of 0 selects every element that is not zero.
  kernels::ThresholdSelect selection() const {
    return {std::max(threshold_, FloatLimits::denorm_min()), room_.capacity, value_};
  }
  static kernels::SparsePayload entries_of(const std::byte* payload) {
    return {payload + Count::kSize, Count::load(payload)};
  }

  // Returns 0 if fewer elements than wanted are not zero; all of those are sent then.
  float exact_threshold(const kernels::Feedback& steps) const {
    const std::byte* values = steps.gradient;
    std::vector<float> sums;
    if (steps.residual != nullptr) {
      sums.resize(static_cast<std::size_t>(numel_));
      std::byte* const to = std::as_writable_bytes(std::span(sums)).data();
      const std::byte* const terms[] = {steps.gradient, steps.residual};
      kernels::reduce(ReduceOp::kSum, DType::kF32, terms, to, numel_);
      values = to;
    }
    return std::bit_cast<float>(kernels::kth_magnitude(numel_, room_.wanted, values).key);
  }

  // Counts a use, and lets the threshold follow the number of elements that have reached it.
  void follow(std::int64_t reached) {
    ++uses_;
    if (3 * reached < 2 * room_.wanted) {
      threshold_ /= kControl;
    } else if (4 * reached > 5 * room_.wanted) {
      threshold_ = std::min(threshold_ * kControl, FloatLimits::max());
    }
  }

  const std::int64_t numel_;
  const std::int64_t density_;
  const std::int64_t reestimate_;
  const DType value_;
  const WarmUp warm_up_;
  Room room_;
  CodedMomentum momentum_;
  float threshold_ = 0;  // 0: unknown
  std::int64_t uses_ = 0;
};

}  // namespace

Status ThresholdSparse::check(Params params, const Shape& shape) const {
  Status status = check_params(name(), params,
                               with_warm_up(params,
                                            {{"feedback", 0, 1},
                                             {"density", 1, params::kOne},
                                             {"reestimate", 1, kMostUses},
                                             kValueRange,
                                             kMomentumRange,
                                             {"nesterov", 0, 1}},
                                            params::kOne));
  if (status.ok() && shape.numel > kMostElements) {
    return invalid_argument("codec " + std::string(name()) + ": a tensor has " + std::to_string(shape.numel) +
                            " elements; at most " + std::to_string(kMostElements) + " are allowed");
  }
  return status;
}

std::size_t ThresholdSparse::payload_bytes(Params params, const Shape& shape, std::int64_t numel) const {
  SRT_CHECK(numel == shape.numel);
  return payload_of(value_dtype(params), numel, room_of(params[params::kDensity], numel));
}

std::unique_ptr<Coder> ThresholdSparse::open(Params params, const Shape& shape) const {
  return std::make_unique<ThresholdSparseCoder>(params, shape.numel);
}

std::unique_ptr<const PayloadCodec> make_threshold_sparse(PayloadCodecInfo info) {
  return std::make_unique<ThresholdSparse>(info);
}

}  // namespace sirtaki::compression
