#include "compression/codecs/kernel_sparse.h"

#include <algorithm>
#include <vector>

#include "compression/params.h"
#include "kernels/filter/filter.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kMostFilters = 65536;

class KernelSparseCoder final : public Coder {
 public:
  KernelSparseCoder(Params params, const Shape& shape)
      : shape_{shape.rows, shape.numel / shape.rows}, keep_(params[params::kFilters]), value_(value_dtype(params)) {}

  bool wants_whole() const override { return false; }

  std::size_t payload_bytes(std::int64_t numel) const override {
    SRT_CHECK(numel == shape_.filters * shape_.size);
    return id_bytes() + static_cast<std::size_t>(keep_ * shape_.size) * dtype_size(value_);
  }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    SRT_CHECK(piece.numel == shape_.filters * shape_.size);
    norms_.resize(static_cast<std::size_t>(shape_.filters));
    std::byte* const norms = std::as_writable_bytes(std::span(norms_)).data();
    kernels::filter_norms(shape_, arrays, norms);
    kernels::filter_select(shape_.filters, keep_, norms, payload.data());
    const bool feedback = arrays.left != nullptr;
    // Without feedback nothing is taken out, so nothing is written.
    std::byte* const values = feedback ? arrays.left : const_cast<std::byte*>(arrays.gradient);
    kernels::filter_gather(shape_, ids(payload.data()), {value_, feedback}, values, payload.data() + id_bytes());
  }

  Status check(const Piece& /*piece*/, ConstBytes payload) const override {
    return kernels::filter_ids_valid(shape_.filters, keep_, payload.data()) ? Status() : impossible_payload("a filter");
  }

  void sum(const Piece& /*piece*/, std::span<const std::byte* const> payloads, std::byte* out) const override {
    std::vector<kernels::FilterPart> parts(payloads.size());
    std::transform(payloads.begin(), payloads.end(), parts.begin(), [this](const std::byte* payload) {
      return kernels::FilterPart{ids(payload), payload + id_bytes()};
    });
    kernels::filter_sum(shape_, value_, parts, out);
  }

 private:
  std::size_t id_bytes() const { return static_cast<std::size_t>(keep_) * sizeof(std::uint16_t); }
  kernels::FilterIds ids(const std::byte* payload) const { return {payload, keep_}; }

  const kernels::FilterShape shape_;
  const std::int64_t keep_;
  const DType value_;
  std::vector<float> norms_;
};

}  // namespace

Status KernelSparse::check(Params params, const Shape& shape) const {
  const std::string who = "codec " + std::string(name()) + ": ";
  if (shape.rows < 1 || shape.rows > kMostFilters || shape.numel % shape.rows != 0) {
    return invalid_argument(who + "a tensor of " + std::to_string(shape.numel) + " elements has " +
                            std::to_string(shape.rows) + " filters; allowed are 1 to " + std::to_string(kMostFilters) +
                            " of equal size");
  }
  return check_params(name(), params, {{"feedback", 0, 1}, {"block", 0, 0}, {"filters", 1, shape.rows}, kValueRange});
}

std::int64_t KernelSparse::stripe(Params /*params*/, const Shape& shape, int /*ranks*/) const {
  return shape.numel;
}

std::size_t KernelSparse::payload_bytes(Params params, const Shape& shape, std::int64_t numel) const {
  return KernelSparseCoder(params, shape).payload_bytes(numel);
}

std::unique_ptr<Coder> KernelSparse::open(Params params, const Shape& shape) const {
  return std::make_unique<KernelSparseCoder>(params, shape);
}

}  // namespace sirtaki::compression
