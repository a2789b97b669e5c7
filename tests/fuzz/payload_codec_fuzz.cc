// Payloads of every codec from any peer: check(), and sum() of payloads that pass.
#include <algorithm>
#include <cstring>
#include <memory>

#include "compression/codecs/catalog.h"
#include "runtime/base/check.h"
#include "runtime/base/config/compression_spec.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

using compression::Coder;
using compression::PayloadCodec;
using compression::Piece;
using compression::Shape;

struct Target {
  const PayloadCodec* codec;
  std::vector<std::int64_t> params;
};

// Elements of a tensor. A short payload is filled with zeros, so that mutations of any length count.
constexpr std::int64_t kNumels[] = {1, 40, 333, 600};

std::vector<Target> targets() {
  std::vector<Target> all;
  const auto add = [&all](CodecId id, std::vector<std::int64_t> params) {
    all.push_back({compression::find_payload_codec(id), std::move(params)});
    SRT_CHECK(all.back().codec != nullptr);
  };
  add(CodecId::kInt8, {1, 64});
  add(CodecId::kFp8E4M3, {1, 32});
  add(CodecId::kFp8E5M2, {1, 256});
  add(CodecId::kTwobit, {1, params::kOne, 0});
  add(CodecId::kOnebit, {1, 128});
  add(CodecId::kGroupTopk, {1, 50, 4, static_cast<int>(DType::kF32), 0, 0});
  add(CodecId::kGroupTopk, {1, 300, 7, static_cast<int>(DType::kF16), 0, 0});
  add(CodecId::kThresholdSparse, {1, 9000, 8, static_cast<int>(DType::kBF16), 0, 0});
  add(CodecId::kKernelSparse, {1, 0, 1, static_cast<int>(DType::kF16)});
  add(CodecId::kBlockTopk, {1, 64, 1});
  add(CodecId::kPowerSgd, {1, 2, 1});
  add(CodecId::kInt4, {1, 64});
  add(CodecId::kInt4, {1, 7});
  for (const PayloadCodec* codec : compression::payload_codecs()) {
    if (std::ranges::find(all, codec, &Target::codec) == all.end()) {
      add(codec->id(), plain_params(method_of(*find_method(codec->name()))));
    }
  }
  return all;
}

const std::vector<Target>& all_targets() {
  static const std::vector<Target> kAll = targets();
  return kAll;
}

Shape shape_of(std::int64_t numel) {
  return {.numel = numel, .rows = numel % 4 == 0 ? 4 : 1};
}

void check_payload(const Target& target, std::int64_t numel, ConstBytes bytes) {
  const Shape shape = shape_of(numel);
  const std::unique_ptr<Coder> coder = target.codec->open(target.params, shape);
  const Piece piece{0, numel};
  std::vector<std::byte> payload(coder->payload_bytes(numel));
  std::copy_n(bytes.begin(), std::min(bytes.size(), payload.size()), payload.begin());
  const Status status = coder->check(piece, payload);
  SRT_CHECK(status.ok() || status.code() == Code::kCorrupt);
  if (status.ok()) {
    std::vector<std::byte> out(static_cast<std::size_t>(numel) * sizeof(float));
    const std::byte* const parts[] = {payload.data(), payload.data()};
    coder->sum(piece, parts, out.data());
  }
}

Input seed_of(std::size_t target, std::size_t size) {
  const Target& chosen = all_targets()[target];
  const std::int64_t numel = kNumels[size];
  const std::unique_ptr<Coder> coder = chosen.codec->open(chosen.params, shape_of(numel));
  std::vector<float> gradient(static_cast<std::size_t>(numel));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 13) - 6.5F;
  }
  std::vector<std::byte> payload(coder->payload_bytes(numel));
  const kernels::Feedback arrays{.gradient = std::as_bytes(std::span(gradient)).data()};
  coder->begin(arrays);
  coder->encode({0, numel}, arrays, payload);
  Input input = input_from(payload);
  input.insert(input.begin(), {static_cast<std::uint8_t>(target), static_cast<std::uint8_t>(size)});
  input.resize(std::min(input.size(), kMaxInput));
  return input;
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> all;
  for (std::size_t target = 0; target < all_targets().size(); ++target) {
    for (const std::size_t size : {1, 2}) {
      all.push_back(seed_of(target, size));
    }
  }
  return all;
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki::fuzz;
  if (size >= 2) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const Target& target = all_targets()[data[0] % all_targets().size()];
    check_payload(target, kNumels[data[1] % std::size(kNumels)], bytes.subspan(2));
  }
  return 0;
}
