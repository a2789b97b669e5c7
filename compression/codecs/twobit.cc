#include "compression/codecs/twobit.h"

#include <algorithm>
#include <vector>

#include "compression/codecs/factories.h"
#include "compression/device_coding.h"
#include "compression/params.h"
#include "kernels/magnitude/magnitude.h"
#include "kernels/twobit/exponent.h"
#include "kernels/twobit/twobit.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kLargestFactor = 64 * params::kOne;
std::size_t bytes_of(std::int64_t numel) {
  return 1 + kernels::twobit_bytes(numel);
}

// Calls body(first, elements, byte) for every block: its elements in the piece, and its position in the payload.
template <class Body>
void for_each_block(std::int64_t numel, Body body) {
  std::size_t at = 0;
  for (std::int64_t first = 0; first < numel; first += Twobit::kBlock) {
    const std::int64_t elements = std::min(Twobit::kBlock, numel - first);
    body(first, elements, at);
    at += bytes_of(elements);
  }
}

std::size_t payload_of(std::int64_t numel) {
  std::size_t bytes = 0;
  for_each_block(
      numel, [&](std::int64_t /*first*/, std::int64_t elements, std::size_t at) { bytes = at + bytes_of(elements); });
  return bytes;
}

class TwobitCoder final : public Coder, public CountedCodes, private DeviceCoding {
 public:
  TwobitCoder(Params params, std::int64_t numel)
      : factor_(static_cast<double>(params[params::kFactor]) / static_cast<double>(params::kOne)),
        by_block_(params[params::kByStripe] != 0),
        numel_(numel) {}

  bool wants_whole() const override { return !by_block_; }

  CountedCodes* counted() override { return this; }
  DeviceCoding* on_device() override { return this; }

  void want(const Piece& piece, const kernels::Feedback& arrays, std::byte* exponents) const override {
    for_each_block(piece.numel, [&](std::int64_t first, std::int64_t elements, std::size_t /*at*/) {
      *exponents++ = static_cast<std::byte>(exponent_for(piece.offset + first, elements, arrays.from(first)));
    });
  }

  void begin(const kernels::Feedback& whole) override {
    if (by_block_) {
      return;
    }
    exponents_.resize(static_cast<std::size_t>((numel_ + kBlock - 1) / kBlock));
    double sum = 0;
    float largest = 0;
    for_each_block(numel_, [&](std::int64_t first, std::int64_t elements, std::size_t /*at*/) {
      const kernels::Magnitude size = kernels::magnitude(elements, whole.from(first));
      sum += size.sum;
      largest = std::max(largest, size.largest);
      exponents_[static_cast<std::size_t>(first / kBlock)] =
          static_cast<std::int8_t>(kernels::twobit_carrying(size.largest));
    });
    const int wanted = kernels::twobit_wanted(factor_, sum, numel_, largest);
    for (std::int8_t& exponent : exponents_) {
      exponent = static_cast<std::int8_t>(std::max<int>(exponent, wanted));
    }
  }

  std::size_t payload_bytes(std::int64_t numel) const override { return payload_of(numel); }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    for_each_block(piece.numel, [&](std::int64_t first, std::int64_t elements, std::size_t at) {
      const kernels::Feedback block = arrays.from(first);
      const int exponent = exponent_for(piece.offset + first, elements, block);
      payload[at] = static_cast<std::byte>(exponent);
      kernels::twobit_encode(exponent, elements, block, payload.data() + at + 1);
    });
  }

  Status check(const Piece& piece, ConstBytes payload) const override {
    bool valid = true;
    for_each_block(piece.numel, [&](std::int64_t /*first*/, std::int64_t elements, std::size_t at) {
      valid = valid && std::to_integer<std::int8_t>(payload[at]) >= kLeastExponent &&
              kernels::twobit_valid(elements, payload.data() + at + 1);
    });
    return valid ? Status() : impossible_payload("a threshold or a code");
  }

  void sum(const Piece& piece, std::span<const std::byte* const> payloads, std::byte* out) const override {
    std::vector<kernels::TwobitPart> parts(payloads.size());
    for_each_block(piece.numel, [&](std::int64_t first, std::int64_t elements, std::size_t at) {
      std::transform(payloads.begin(), payloads.end(), parts.begin(), [at](const std::byte* payload) {
        return kernels::TwobitPart{payload + at + 1, std::to_integer<std::int8_t>(payload[at])};
      });
      kernels::twobit_sum(parts, elements, out + static_cast<std::size_t>(first) * sizeof(float));
    });
  }

 private:
  std::size_t whole_bytes() const override { return by_block_ ? 0 : scratch_bytes(numel_, 0); }
  kernels::cuda::Launch begin(const DeviceQueue& queue, const kernels::Feedback& whole,
                              std::byte* memory) const override {
    return choose(queue, numel_, whole, memory, true);
  }
  // Magnitudes of the blocks and of all, then exponents.
  std::size_t scratch_bytes(std::int64_t numel, std::size_t /*payloads*/) const override {
    return exponents_at(numel) + exponent_bytes(numel);
  }
  kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                               const DeviceOutput& out) const override {
    const std::byte* exponents = out.scratch + exponents_at(piece.numel);
    if (out.whole != nullptr) {
      exponents = out.whole + exponents_at(numel_) + piece.offset / kBlock;
    } else if (const auto chosen = choose(queue, piece.numel, arrays, out.scratch, false); !chosen.ok()) {
      return chosen;
    }
    return queue.kernels.twobit_encode({{piece.numel, kBlock}, arrays, exponents, out.payload, &out.note->not_finite},
                                       queue.stream);
  }
  kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& piece, const DeviceSum& sum) const override {
    return queue.kernels.twobit_sum({{piece.numel, kBlock}, sum.payloads, sum.out, sum.divisor}, queue.stream);
  }

  static std::size_t exponents_at(std::int64_t numel) {
    return (exponent_bytes(numel) + 1) * sizeof(kernels::cuda::TwobitMagnitude);
  }
  kernels::cuda::Launch choose(const DeviceQueue& queue, std::int64_t numel, const kernels::Feedback& arrays,
                               std::byte* memory, bool whole) const {
    auto* const magnitudes = reinterpret_cast<kernels::cuda::TwobitMagnitude*>(memory);
    const kernels::cuda::TwobitBlocks blocks{numel, kBlock};
    const auto measured = queue.kernels.twobit_measure({blocks, arrays, magnitudes}, queue.stream);
    return measured.ok() ? queue.kernels.twobit_choose(
                               {blocks, magnitudes, factor_, whole, memory + exponents_at(numel)}, queue.stream)
                         : measured;
  }

  int exponent_for(std::int64_t offset, std::int64_t elements, const kernels::Feedback& block) const {
    return exponents_.empty() ? exponent_of(elements, block) : exponents_[static_cast<std::size_t>(offset / kBlock)];
  }
  int exponent_of(std::int64_t elements, const kernels::Feedback& block) const {
    const kernels::Magnitude size = kernels::magnitude(elements, block);
    const int wanted = kernels::twobit_wanted(factor_, size.sum, elements, size.largest);
    return std::max(wanted, kernels::twobit_carrying(size.largest));
  }

  const double factor_;
  const bool by_block_;
  const std::int64_t numel_;
  std::vector<std::int8_t> exponents_;  // one per block, once begin() has chosen them
};

}  // namespace

Status Twobit::check(Params params, const Shape& /*shape*/) const {
  return check_params(name(), params, {{"feedback", 0, 1}, {"factor", 1, kLargestFactor}, {"by_stripe", 0, 1}});
}

std::int64_t Twobit::stripe(Params /*params*/, const Shape& shape, int ranks) const {
  return stripe_of_blocks(kBlock, shape, ranks);
}

std::size_t Twobit::payload_bytes(Params /*params*/, const Shape& /*shape*/, std::int64_t numel) const {
  return payload_of(numel);
}

std::unique_ptr<Coder> Twobit::open(Params params, const Shape& shape) const {
  return std::make_unique<TwobitCoder>(params, shape.numel);
}

std::unique_ptr<const PayloadCodec> make_twobit(PayloadCodecInfo info) {
  return std::make_unique<Twobit>(info);
}

}  // namespace sirtaki::compression
