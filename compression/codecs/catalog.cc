#include "compression/codecs/catalog.h"

#include <array>

#include "compression/codecs/block_sparse.h"
#include "compression/codecs/cast.h"
#include "compression/codecs/group_topk.h"
#include "compression/codecs/none.h"
#include "compression/codecs/onebit.h"
#include "compression/codecs/power_sgd.h"
#include "compression/codecs/scaled.h"
#include "compression/codecs/threshold_sparse.h"
#include "compression/codecs/twobit.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

template <class C, class Predicate>
const C* find(std::span<const C* const> all, Predicate matches) {
  for (const C* one : all) {
    if (matches(*one)) {
      return one;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const Codec* const> codecs() {
  static const None kNone({CodecId::kNone, "none", "elements are sent unchanged"});
  static const Cast kFp16({CodecId::kFp16, "fp16", "float32 and float64 are sent and summed as float16"}, DType::kF16);
  static const Cast kBf16({CodecId::kBf16, "bf16", "float32 and float64 are sent and summed as bfloat16"},
                          DType::kBF16);
  static const std::array<const Codec*, 3> kAll = {&kNone, &kFp16, &kBf16};
  return kAll;
}

std::span<const PayloadCodec* const> payload_codecs() {
  static const Scaled kInt8({CodecId::kInt8, "int8", "8-bit integers with a scale for each block"},
                            kernels::ScaledCode::kInt8);
  static const Scaled kE4M3({CodecId::kFp8E4M3, "fp8_e4m3", "8-bit floats (4 bits of exponent) with scales"},
                            kernels::ScaledCode::kE4M3);
  static const Scaled kE5M2({CodecId::kFp8E5M2, "fp8_e5m2", "8-bit floats (5 bits of exponent) with scales"},
                            kernels::ScaledCode::kE5M2);
  static const Twobit kTwobit(
      {CodecId::kTwobit, "twobit", "plus or minus a threshold, or zero; the residual keeps the rest"});
  static const Onebit kOnebit({CodecId::kOnebit, "onebit", "signs with a mean magnitude for each block"});
  static const GroupTopk kGroupTopk({CodecId::kGroupTopk, "group_topk", "the largest elements of each small group"});
  static const ThresholdSparse kThresholdSparse(
      {CodecId::kThresholdSparse, "threshold_sparse", "the elements that reach a threshold, one per tensor"});
  static const KernelSparse kKernelSparse(
      {CodecId::kKernelSparse, "kernel_sparse", "the filters of a convolution with the largest mean magnitude"});
  static const BlockTopk kBlockTopk(
      {CodecId::kBlockTopk, "block_topk", "the blocks of a tensor with the largest mean magnitude"});
  static const PowerSgd kPowerSgd({CodecId::kPowerSgd, "powersgd", "a matrix as a product of two thin ones"});
  static const std::array<const PayloadCodec*, 10> kAll = {
      &kInt8,         &kE4M3,      &kE5M2,    &kTwobit, &kOnebit, &kGroupTopk, &kThresholdSparse,
      &kKernelSparse, &kBlockTopk, &kPowerSgd};
  return kAll;
}

const Codec* find_codec(std::string_view name) {
  return find(codecs(), [&](const Codec& codec) { return codec.name() == name; });
}

const Codec* find_codec(CodecId id) {
  return find(codecs(), [&](const Codec& codec) { return codec.id() == id; });
}

const PayloadCodec* find_payload_codec(std::string_view name) {
  return find(payload_codecs(), [&](const PayloadCodec& codec) { return codec.name() == name; });
}

const PayloadCodec* find_payload_codec(CodecId id) {
  return find(payload_codecs(), [&](const PayloadCodec& codec) { return codec.id() == id; });
}

const Codec& codec(CodecId id) {
  const Codec* found = find_codec(id);
  SRT_CHECK(found != nullptr);
  return *found;
}

std::string codec_names() {
  std::string names;
  for (const Codec* codec : codecs()) {
    names.append(names.empty() ? "" : ", ").append(codec->name());
  }
  for (const PayloadCodec* codec : payload_codecs()) {
    names.append(", ").append(codec->name());
  }
  return names;
}

}  // namespace sirtaki::compression
