#include "runtime/control/bundle.h"

#include <utility>

namespace sirtaki::control {
namespace {

std::string subject_of(const Announce& m) {
  return "announce " + std::to_string(m.use) + " " + m.name;
}
std::string subject_of(const StreamOpen& m) {
  return "open " + m.name;
}
std::string subject_of(const StreamClose& m) {
  return "close " + std::to_string(m.stream.value);
}
std::string subject_of(const Waiting& /*m*/) {
  return "waiting";
}
std::string subject_of(const Leaving& /*m*/) {
  return "leaving";
}
std::string subject_of(const Joined& /*m*/) {
  return "joined";
}
template <class T>
std::string subject_of(const T& /*m*/) {
  return {};
}

bool equal(const Announce& a, const Announce& b) {
  return a.use == b.use && a.name == b.name && a.meta.compatible(b.meta);
}
bool equal(const StreamOpen& a, const StreamOpen& b) {
  return a == b;
}
bool equal(const StreamClose& a, const StreamClose& b) {
  return a.stream == b.stream;
}
bool equal(const Waiting& a, const Waiting& b) {
  return a == b;
}
bool equal(const Leaving& a, const Leaving& b) {
  return a == b;
}
bool equal(const Joined& a, const Joined& b) {
  return a == b;
}
template <class A, class B>
bool equal(const A& /*a*/, const B& /*b*/) {
  return false;
}

template <class Items>
std::vector<std::byte> encode_items(const Items& items) {
  WireWriter w;
  w.put(static_cast<std::uint32_t>(items.size()));
  for (const auto& item : items) {
    put(w, item.ranks);
    w.put_bytes(encode(item.message));
  }
  return std::move(w).take();
}

template <class Items>
std::vector<std::vector<std::byte>> encode_items_in_parts(const Items& items, std::size_t most) {
  std::vector<std::vector<std::byte>> parts;
  WireWriter part;
  std::uint32_t count = 0;
  const auto end_part = [&] {
    WireWriter whole;
    whole.put(std::exchange(count, 0));
    whole.put_raw(part.bytes());
    parts.push_back(std::move(whole).take());
    part = WireWriter();
  };
  for (const auto& item : items) {
    WireWriter one;
    put(one, item.ranks);
    one.put_bytes(encode(item.message));
    if (count > 0 && part.bytes().size() + one.bytes().size() + sizeof(count) > most) {
      end_part();
    }
    part.put_raw(one.bytes());
    ++count;
  }
  if (count > 0) {
    end_part();
  }
  return parts;
}

template <class Item, class Decode>
Result<std::vector<Item>> decode_items(ConstBytes bytes, int size, Decode decode) {
  WireReader r(bytes);
  const auto count = r.get_count(9);
  std::vector<Item> items;
  items.reserve(count);
  for (std::uint32_t i = 0; i < count && r.ok(); ++i) {
    RankSet ranks = get_ranks(r, size);
    if (ranks.empty()) {
      r.fail();
      break;
    }
    auto message = decode(r.get_bytes());
    if (!message) {
      return message.status();
    }
    items.push_back({std::move(ranks), std::move(*message)});
  }
  SRT_TRY(r.finish("bundle of control messages"));
  return items;
}

}  // namespace

std::string subject(const MemberMessage& message) {
  return std::visit([](const auto& m) { return subject_of(m); }, message);
}

bool merges(const MemberMessage& a, const MemberMessage& b) {
  return std::visit([](const auto& x, const auto& y) { return equal(x, y); }, a, b);
}

std::vector<std::byte> encode(const Bundle& bundle) {
  return encode_items(bundle);
}
std::vector<std::byte> encode(const Spread& spread) {
  return encode_items(spread);
}

std::vector<std::vector<std::byte>> encode_parts(const Bundle& bundle, std::size_t most) {
  return encode_items_in_parts(bundle, most);
}
std::vector<std::vector<std::byte>> encode_parts(const Spread& spread, std::size_t most) {
  return encode_items_in_parts(spread, most);
}

Result<Bundle> decode_bundle(ConstBytes bytes, int size) {
  return decode_items<SourcedMessage>(bytes, size, decode_member_message);
}

Result<Spread> decode_spread(ConstBytes bytes, int size) {
  return decode_items<TargetedMessage>(bytes, size, decode_coordinator_message);
}

}  // namespace sirtaki::control
