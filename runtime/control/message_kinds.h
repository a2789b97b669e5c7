// The wire form of a variant of messages: a u8 kind, the index of the alternative, then its fields.
//
// The callers pass how one message is written and read, as overloads of their own unnamed namespaces.
#pragma once

#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/wire.h"

namespace sirtaki::control {

// Names a type of message in a call of `get`.
template <class T>
struct Tag {};

// Calls put(writer, message).
template <class Variant, class Put>
std::vector<std::byte> encode_variant(const Variant& message, const Put& put) {
  WireWriter writer;
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& m) { put(writer, m); }, message);
  return std::move(writer).take();
}

// Reads the alternative with number `index` by get(reader, Tag<T>); an unknown number fails the reader.
template <class Variant, std::size_t I = 0, class Get>
Variant get_alternative(WireReader& r, std::size_t index, const Get& get) {
  if constexpr (I == std::variant_size_v<Variant>) {
    r.fail();
    return Variant{};
  } else {
    if (index == I) {
      return get(r, Tag<std::variant_alternative_t<I, Variant>>{});
    }
    return get_alternative<Variant, I + 1>(r, index, get);
  }
}

template <class Variant, class Get>
Result<Variant> decode_variant(ConstBytes bytes, std::string_view what, const Get& get) {
  WireReader reader(bytes);
  const auto index = reader.get<std::uint8_t>();
  Variant message = get_alternative<Variant>(reader, index, get);
  SRT_TRY(reader.finish(what));
  return message;
}

}  // namespace sirtaki::control
