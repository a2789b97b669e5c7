#include "compression/catalog.h"

#include <array>

#include "compression/codecs/cast.h"
#include "compression/codecs/none.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {

std::span<const Codec* const> codecs() {
  static const None kNone({0, "none", "elements travel as they are"});
  static const Cast kFp16({1, "fp16", "float32 and float64 travel, and are summed, as float16"}, DType::kF16);
  static const Cast kBf16({2, "bf16", "float32 and float64 travel, and are summed, as bfloat16"}, DType::kBF16);
  static const std::array<const Codec*, 3> kAll = {&kNone, &kFp16, &kBf16};
  return kAll;
}

const Codec* find_codec(std::string_view name) {
  for (const Codec* codec : codecs()) {
    if (codec->name() == name) {
      return codec;
    }
  }
  return nullptr;
}

const Codec* find_codec(std::uint16_t id) {
  for (const Codec* codec : codecs()) {
    if (codec->id() == id) {
      return codec;
    }
  }
  return nullptr;
}

const Codec& codec(std::uint16_t id) {
  const Codec* found = find_codec(id);
  SRT_CHECK(found != nullptr);
  return *found;
}

std::string codec_names() {
  std::string names;
  for (const Codec* codec : codecs()) {
    names.append(names.empty() ? "" : ", ").append(codec->name());
  }
  return names;
}

}  // namespace sirtaki::compression
