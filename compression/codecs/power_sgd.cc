#include "compression/codecs/power_sgd.h"

#include <utility>
#include <vector>

#include "compression/codecs/factories.h"
#include "compression/low_rank_factors.h"
#include "compression/params.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

class PowerSgdCoder final : public Coder {
 public:
  PowerSgdCoder(Params params, const Shape& shape)
      : numel_(shape.numel), factors_(shape, params[params::kRank], params[params::kWarmStart] != 0) {}

  LowRankFactors* factors() override { return &factors_; }

  CoderState state() const override { return {{}, factors_.state()}; }
  void restore(const CoderState& state) override { factors_.restore(state.own); }

  std::size_t payload_bytes(std::int64_t numel) const override {
    SRT_CHECK(numel == numel_);
    return factors_.p_bytes() + factors_.q_bytes();
  }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    SRT_CHECK(piece.numel == numel_);
    std::byte* const p = payload.data();
    std::byte* const q = p + factors_.p_bytes();
    factors_.project(arrays, p);
    factors_.back(arrays, p, q);
    factors_.rebuild(arrays, p, q, nullptr);
  }

  // Any numbers are factors of some matrix.
  Status check(const Piece& /*piece*/, ConstBytes /*payload*/) const override { return {}; }

  void sum(const Piece& /*piece*/, std::span<const std::byte* const> payloads, std::byte* out) const override {
    std::vector<float> product(static_cast<std::size_t>(numel_));
    std::byte* const to = std::as_writable_bytes(std::span(product)).data();
    std::fill_n(out, product.size() * sizeof(float), std::byte{0});
    for (const std::byte* payload : payloads) {
      // Without a residual the matrix itself does not matter.
      kernels::low_rank_rebuild(factors_.shape(), {.gradient = out}, payload, payload + factors_.p_bytes(), to);
      const std::byte* const terms[] = {out, to};
      kernels::reduce(ReduceOp::kSum, DType::kF32, terms, out, numel_);
    }
  }

 private:
  const std::int64_t numel_;
  LowRankFactors factors_;
};

}  // namespace

Status PowerSgd::check(Params params, const Shape& shape) const {
  if (shape.rows < 1 || shape.numel < 1 || shape.numel % shape.rows != 0) {
    return invalid_argument("codec " + std::string(name()) + ": " + std::to_string(shape.numel) +
                            " elements do not form a matrix of " + std::to_string(shape.rows) + " rows");
  }
  return check_params(name(), params, {{"feedback", 0, 1}, {"rank", 1, kernels::kMostRank}, {"warm_start", 0, 1}});
}

std::size_t PowerSgd::payload_bytes(Params params, const Shape& shape, std::int64_t numel) const {
  SRT_CHECK(numel == shape.numel);
  const kernels::LowRank matrix = matrix_of(shape, params[params::kRank]);
  return p_bytes_of(matrix) + q_bytes_of(matrix);
}

std::unique_ptr<Coder> PowerSgd::open(Params params, const Shape& shape) const {
  return std::make_unique<PowerSgdCoder>(params, shape);
}

std::unique_ptr<const PayloadCodec> make_powersgd(PayloadCodecInfo info) {
  return std::make_unique<PowerSgd>(info);
}

}  // namespace sirtaki::compression
