#include "launcher/join/host_offer.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "launcher/hosts/hosts.h"
#include "runtime/base/wire.h"

namespace sirtaki::launcher {

namespace {

constexpr std::size_t kMaxName = 64;

bool is_of_a_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
}

}  // namespace

std::vector<std::byte> encode(const HostOffer& offer) {
  std::string name = offer.name.substr(0, kMaxName);
  std::ranges::replace_if(
      name, [](char c) { return !is_of_a_name(c); }, '_');
  WireWriter out;
  out.put_string(name);
  out.put(offer.slots);
  return std::move(out).take();
}

Result<HostOffer> decode_host_offer(ConstBytes bytes) {
  WireReader in(bytes);
  HostOffer offer;
  offer.name = in.get_string();
  offer.slots = in.get<std::int32_t>();
  const bool named =
      !offer.name.empty() && offer.name.size() <= kMaxName && std::ranges::all_of(offer.name, is_of_a_name);
  if (!named || offer.slots < 1 || offer.slots > kMaxSlots) {
    in.fail();
  }
  SRT_TRY(in.finish("offer of a host"));
  return offer;
}

std::string free_host_name(const std::string& name, const std::function<bool(const std::string&)>& is_taken) {
  std::string free = name;
  for (int number = 2; is_taken(free); ++number) {
    free = name + "#" + std::to_string(number);
  }
  return free;
}

}  // namespace sirtaki::launcher
