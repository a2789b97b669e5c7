#include "compression/codecs/onebit.h"

#include "compression/codecs/factories.h"
#include "compression/params.h"
#include "kernels/onebit/onebit.h"

namespace sirtaki::compression {
namespace {

class OnebitCoder final : public Coder {
 public:
  explicit OnebitCoder(std::int64_t block) : block_(block) {}

  std::size_t payload_bytes(std::int64_t numel) const override { return kernels::onebit_bytes(block_, numel); }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    kernels::onebit_encode(block_, piece.numel, arrays, payload.data());
  }

  Status check(const Piece& piece, ConstBytes payload) const override {
    return kernels::onebit_valid(block_, piece.numel, payload.data())
               ? Status()
               : impossible_payload("a sign after the last element");
  }

  void sum(const Piece& piece, std::span<const std::byte* const> payloads, std::byte* out) const override {
    kernels::onebit_sum(block_, piece.numel, payloads, out);
  }

 private:
  const std::int64_t block_;
};

}  // namespace

Status Onebit::check(Params params, const Shape& /*shape*/) const {
  Status status = check_params(name(), params,
                               {{"feedback", 0, 1}, {"block", kernels::kOnebitChunk, kernels::kOnebitLargestBlock}});
  if (status.ok() && params[params::kBlock] % kernels::kOnebitChunk != 0) {
    return invalid_argument("codec " + std::string(name()) + ": block is " + std::to_string(params[params::kBlock]) +
                            "; allowed are multiples of " + std::to_string(kernels::kOnebitChunk));
  }
  return status;
}

std::int64_t Onebit::stripe(Params params, const Shape& shape, int ranks) const {
  return stripe_of_blocks(params[params::kBlock], shape, ranks);
}

std::size_t Onebit::payload_bytes(Params params, const Shape& /*shape*/, std::int64_t numel) const {
  return kernels::onebit_bytes(params[params::kBlock], numel);
}

std::unique_ptr<Coder> Onebit::open(Params params, const Shape& /*shape*/) const {
  return std::make_unique<OnebitCoder>(params[params::kBlock]);
}

std::unique_ptr<const PayloadCodec> make_onebit(PayloadCodecInfo info) {
  return std::make_unique<Onebit>(info);
}

}  // namespace sirtaki::compression
