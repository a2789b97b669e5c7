#include "compression/codecs/catalog.h"

#include <memory>
#include <vector>

#include "compression/codecs/factories.h"
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

template <class C>
std::vector<const C*> pointers_to(const std::vector<std::unique_ptr<const C>>& owned) {
  std::vector<const C*> pointers;
  for (const std::unique_ptr<const C>& one : owned) {
    pointers.push_back(one.get());
  }
  return pointers;
}

std::vector<std::unique_ptr<const Codec>> make_codecs() {
  std::vector<std::unique_ptr<const Codec>> all;
#define SRT_DENSE_CODEC(name, Id, number, help) all.push_back(make_##name({CodecId::k##Id, #name}));
#define SRT_CODEC(name, Id, number, help, sent, keys)
#include "runtime/base/codecs.inc"
#undef SRT_CODEC
#undef SRT_DENSE_CODEC
  return all;
}

std::vector<std::unique_ptr<const PayloadCodec>> make_payload_codecs() {
  std::vector<std::unique_ptr<const PayloadCodec>> all;
#define SRT_DENSE_CODEC(name, Id, number, help)
#define SRT_CODEC(name, Id, number, help, sent, keys) all.push_back(make_##name({CodecId::k##Id, #name}));
#include "runtime/base/codecs.inc"
#undef SRT_CODEC
#undef SRT_DENSE_CODEC
  return all;
}

}  // namespace

std::span<const Codec* const> codecs() {
  static const std::vector<std::unique_ptr<const Codec>> kOwned = make_codecs();
  static const std::vector<const Codec*> kAll = pointers_to(kOwned);
  return kAll;
}

std::span<const PayloadCodec* const> payload_codecs() {
  static const std::vector<std::unique_ptr<const PayloadCodec>> kOwned = make_payload_codecs();
  static const std::vector<const PayloadCodec*> kAll = pointers_to(kOwned);
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
