// One codec over one tensor, for the tests of codecs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compression/codecs/catalog.h"

namespace sirtaki::compression {

using Values = std::vector<std::int64_t>;

inline constexpr auto kF32 = static_cast<std::int64_t>(DType::kF32);  // the dtype as a parameter

inline std::byte* bytes(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values)).data();
}

// Coder and residual of one rank for a whole tensor.
class CodecRun {
 public:
  CodecRun(std::string_view codec, Values params, std::int64_t numel)
      : coder_(find_payload_codec(codec)->open(params, {.numel = numel})),
        numel_(numel),
        left(static_cast<std::size_t>(numel)) {}

  Coder& coder() { return *coder_; }

  // Returns the decoded payload of one step.
  std::vector<float> step(std::vector<float> gradient, bool begin = true) {
    const kernels::Feedback arrays{.gradient = bytes(gradient), .residual = bytes(left), .left = bytes(left)};
    if (begin) {
      coder_->begin(arrays);
    }
    payload.assign(coder_->payload_bytes(numel_), std::byte{0xEE});
    coder_->encode({0, numel_}, arrays, payload);
    std::vector<float> out(gradient.size());
    const std::byte* const only = payload.data();
    coder_->sum({0, numel_}, {&only, 1}, bytes(out));
    return out;
  }

 private:
  std::unique_ptr<Coder> coder_;
  std::int64_t numel_;

 public:
  std::vector<float> left;
  std::vector<std::byte> payload;
};

}  // namespace sirtaki::compression
