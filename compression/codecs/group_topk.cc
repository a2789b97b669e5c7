#include "compression/codecs/group_topk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compression/codecs/factories.h"
#include "compression/codecs/momentum.h"
#include "compression/device_coding.h"
#include "compression/params.h"
#include "kernels/group_topk/group_topk.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kLargestGroup = 65536;

kernels::GroupTopk how_of(Params params) {
  return {static_cast<std::int32_t>(params[params::kGroup]), static_cast<std::int32_t>(params[params::kKeep]),
          value_dtype(params)};
}

class GroupTopkCoder final : public Coder, private DeviceCoding {
 public:
  GroupTopkCoder(Params params, const Shape& shape)
      : keep_(params[params::kKeep]),
        warm_up_(warm_up_of(params)),
        how_(how_of(params)),
        momentum_(params, shape.numel) {}

  void at_step(std::uint64_t step) override { how_.keep = static_cast<std::int32_t>(warm_up_.at(step, keep_)); }

  std::size_t payload_bytes(std::int64_t numel) const override { return kernels::group_topk_bytes(how_, numel); }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    kernels::group_topk_encode(how_, piece.numel, momentum_.step(piece, arrays), payload.data());
    // If all elements are sent, no momentum is stale: this is plain SGD with momentum.
    if (momentum_.on() && how_.keep < how_.group) {
      kernels::group_topk_clear(how_, piece.numel, payload.data(), momentum_.at(piece.offset));
    }
  }

  Status check(const Piece& piece, ConstBytes payload) const override {
    return kernels::group_topk_valid(how_, piece.numel, payload.data()) ? Status()
                                                                        : impossible_payload("an offset in a group");
  }

  void sum(const Piece& piece, std::span<const std::byte* const> payloads, std::byte* out) const override {
    kernels::group_topk_sum(how_, piece.numel, payloads, out);
  }

  CoderState state() const override { return {momentum_.values(), {}}; }
  void restore(const CoderState& state) override { momentum_.restore(state.momentum); }

  // Momentum is in host memory.
  DeviceCoding* on_device() override { return momentum_.on() ? nullptr : this; }

 private:
  kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                               const DeviceOutput& out) const override {
    return queue.kernels.group_topk_encode({how_, piece.numel, arrays, out.payload, &out.note->not_finite},
                                           queue.stream);
  }
  kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& piece, const DeviceSum& sum) const override {
    return queue.kernels.group_topk_sum({how_, piece.numel, sum.payloads, sum.out, sum.divisor}, queue.stream);
  }

  const std::int64_t keep_;
  const WarmUp warm_up_;
  kernels::GroupTopk how_;
  CodedMomentum momentum_;
};

}  // namespace

Status GroupTopk::check(Params params, const Shape& /*shape*/) const {
  Status status = check_params(name(), params,
                               with_warm_up(params,
                                            {{"feedback", 0, 1},
                                             {"group", 1, kLargestGroup},
                                             {"keep", 1, kLargestGroup},
                                             kValueRange,
                                             kMomentumRange,
                                             {"nesterov", 0, 1}},
                                            kLargestGroup));
  if (!status.ok()) {
    return status;
  }
  const std::int64_t most = std::max(params[params::kKeep], warm_up_of(params).first);
  if (most > params[params::kGroup]) {
    return invalid_argument("codec " + std::string(name()) + ": keeps " + std::to_string(most) +
                            " elements of groups of " + std::to_string(params[params::kGroup]));
  }
  return status;
}

std::int64_t GroupTopk::stripe(Params params, const Shape& shape, int ranks) const {
  return stripe_of_blocks(params[params::kGroup], shape, ranks);
}

std::size_t GroupTopk::payload_bytes(Params params, const Shape& /*shape*/, std::int64_t numel) const {
  return kernels::group_topk_bytes(how_of(params), numel);
}

std::unique_ptr<Coder> GroupTopk::open(Params params, const Shape& shape) const {
  return std::make_unique<GroupTopkCoder>(params, shape);
}

std::unique_ptr<Coder> GroupTopk::open_owner(Params params, const Shape& shape) const {
  std::vector<std::int64_t> without(params.begin(), params.end());
  without[params::kMomentum] = 0;
  return open(without, shape);
}

std::unique_ptr<const PayloadCodec> make_group_topk(PayloadCodecInfo info) {
  return std::make_unique<GroupTopk>(info);
}

}  // namespace sirtaki::compression
