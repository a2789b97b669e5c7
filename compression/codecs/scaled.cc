#include "compression/codecs/scaled.h"

#include "compression/codecs/factories.h"
#include "compression/device_coding.h"
#include "compression/params.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kLargestScaledBlock = 65536;

class ScaledCoder final : public Coder, private DeviceCoding {
 public:
  explicit ScaledCoder(const kernels::ScaledCast& how) : how_(how) {}

  std::size_t payload_bytes(std::int64_t numel) const override { return kernels::scaled_bytes(how_, numel); }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    kernels::scaled_encode(how_, piece.numel, arrays, payload.data());
  }

  Status check(const Piece& piece, ConstBytes payload) const override {
    return kernels::scaled_valid(how_, piece.numel, payload.data()) ? Status()
                                                                    : impossible_payload("a code or a scale");
  }

  void sum(const Piece& piece, std::span<const std::byte* const> payloads, std::byte* out) const override {
    kernels::scaled_sum(how_, piece.numel, payloads, out);
  }

  DeviceCoding* on_device() override { return how_.code == kernels::ScaledCode::kInt4 ? nullptr : this; }

 private:
  kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                               const DeviceOutput& out) const override {
    return queue.kernels.scaled_encode({how_, piece.numel, arrays, out.payload, &out.note->not_finite}, queue.stream);
  }
  kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& piece, const DeviceSum& sum) const override {
    return queue.kernels.scaled_sum({how_, piece.numel, sum.payloads, sum.out, sum.divisor}, queue.stream);
  }

  const kernels::ScaledCast how_;
};

}  // namespace

kernels::ScaledCast Scaled::cast(Params params) const {
  return {code_, static_cast<std::int32_t>(params[params::kBlock])};
}

Status Scaled::check(Params params, const Shape& /*shape*/) const {
  return check_params(name(), params, {{"feedback", 0, 1}, {"block", 1, kLargestScaledBlock}});
}

std::int64_t Scaled::stripe(Params params, const Shape& shape, int ranks) const {
  return stripe_of_blocks(params[params::kBlock], shape, ranks);
}

std::size_t Scaled::payload_bytes(Params params, const Shape& /*shape*/, std::int64_t numel) const {
  return kernels::scaled_bytes(cast(params), numel);
}

std::unique_ptr<Coder> Scaled::open(Params params, const Shape& /*shape*/) const {
  return std::make_unique<ScaledCoder>(cast(params));
}

std::unique_ptr<const PayloadCodec> make_int8(PayloadCodecInfo info) {
  return std::make_unique<Scaled>(info, kernels::ScaledCode::kInt8);
}

std::unique_ptr<const PayloadCodec> make_int4(PayloadCodecInfo info) {
  return std::make_unique<Scaled>(info, kernels::ScaledCode::kInt4);
}

std::unique_ptr<const PayloadCodec> make_fp8_e4m3(PayloadCodecInfo info) {
  return std::make_unique<Scaled>(info, kernels::ScaledCode::kE4M3);
}

std::unique_ptr<const PayloadCodec> make_fp8_e5m2(PayloadCodecInfo info) {
  return std::make_unique<Scaled>(info, kernels::ScaledCode::kE5M2);
}

}  // namespace sirtaki::compression
