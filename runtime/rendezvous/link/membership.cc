#include "runtime/rendezvous/link/membership.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"

namespace sirtaki::rendezvous {

namespace {

// Limits of a record from the wire, far above the needs of a real job.
constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxEndpoints = 64;
constexpr std::size_t kMaxOptions = 1024;

std::string get_text(WireReader& in) {
  std::string text = in.get_string();
  if (text.size() > kMaxText) {
    in.fail();
  }
  return text;
}

void put_endpoints(WireWriter& out, const std::vector<std::string>& endpoints) {
  out.put(static_cast<std::uint32_t>(endpoints.size()));
  for (const std::string& endpoint : endpoints) {
    out.put_string(endpoint);
  }
}

std::vector<std::string> get_endpoints(WireReader& in) {
  const std::uint32_t count = in.get_count(sizeof(std::uint32_t));
  std::vector<std::string> endpoints;
  if (count > kMaxEndpoints) {
    in.fail();
    return endpoints;
  }
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    endpoints.push_back(get_text(in));
  }
  return endpoints;
}

}  // namespace

std::vector<std::vector<Rank>> Membership::hosts() const {
  std::vector<std::vector<Rank>> ranks;
  std::unordered_map<std::string_view, std::size_t> places;
  for (const Member& member : members) {
    const auto [place, fresh] = places.emplace(member.host_id, ranks.size());
    if (fresh) {
      ranks.emplace_back();
    }
    ranks[place->second].push_back(member.rank);
  }
  return ranks;
}

int Membership::host_index(Rank rank) const {
  SRT_CHECK(rank >= 0 && rank < size());
  const auto all = hosts();
  const auto found = std::ranges::find_if(
      all, [rank](const std::vector<Rank>& host) { return std::ranges::binary_search(host, rank); });
  return static_cast<int>(found - all.begin());
}

std::vector<Rank> Membership::local_ranks(Rank rank) const {
  return hosts()[static_cast<std::size_t>(host_index(rank))];
}

std::vector<std::byte> encode(const JoinRequest& request) {
  WireWriter out;
  out.put(static_cast<std::int32_t>(request.rank));
  out.put(static_cast<std::int32_t>(request.size));
  out.put_string(request.hostname);
  out.put_string(request.host_id);
  out.put(request.pid);
  out.put(static_cast<std::int32_t>(request.fanout));
  put_endpoints(out, request.data_endpoints);
  put_endpoints(out, request.relay_endpoints);
  out.put_string(request.version);
  out.put(static_cast<std::uint32_t>(request.agreed_options.size()));
  for (const auto& [name, value] : request.agreed_options) {
    out.put_string(name);
    out.put_string(value);
  }
  out.put_list(request.report);
  return std::move(out).take();
}

Result<JoinRequest> decode_join_request(ConstBytes bytes) {
  WireReader in(bytes);
  JoinRequest request;
  request.rank = in.get<std::int32_t>();
  request.size = in.get<std::int32_t>();
  request.hostname = get_text(in);
  request.host_id = get_text(in);
  request.pid = in.get<std::int64_t>();
  request.fanout = in.get<std::int32_t>();
  request.data_endpoints = get_endpoints(in);
  request.relay_endpoints = get_endpoints(in);
  request.version = get_text(in);
  const std::uint32_t options = in.get_count(2 * sizeof(std::uint32_t));
  if (options > kMaxOptions) {
    in.fail();
  }
  for (std::uint32_t i = 0; i < options && in.ok(); ++i) {
    std::string name = get_text(in);
    request.agreed_options.emplace_back(std::move(name), get_text(in));
  }
  request.report = in.get_list<std::byte>();
  SRT_TRY(in.finish("a join request"));
  return request;
}

std::vector<std::byte> encode(const Membership& membership) {
  WireWriter out;
  out.put(membership.epoch.value);
  out.put(static_cast<std::int32_t>(membership.fanout));
  out.put(static_cast<std::uint32_t>(membership.members.size()));
  for (const Member& member : membership.members) {
    out.put_string(member.hostname);
    out.put_string(member.host_id);
    out.put(member.pid);
    put_endpoints(out, member.data_endpoints);
    put_endpoints(out, member.relay_endpoints);
  }
  return std::move(out).take();
}

Result<Membership> decode_membership(ConstBytes bytes) {
  WireReader in(bytes);
  Membership membership;
  membership.epoch = Epoch(in.get<std::uint32_t>());
  membership.fanout = in.get<std::int32_t>();
  const std::uint32_t count = in.get_count(4 * sizeof(std::uint32_t) + sizeof(std::int64_t));
  if (count > kMaxRanks) {
    in.fail();
  }
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    Member member;
    member.rank = static_cast<Rank>(i);
    member.hostname = get_text(in);
    member.host_id = get_text(in);
    member.pid = in.get<std::int64_t>();
    member.data_endpoints = get_endpoints(in);
    member.relay_endpoints = get_endpoints(in);
    membership.members.push_back(std::move(member));
  }
  SRT_TRY(in.finish("a membership"));
  return membership;
}

std::vector<std::byte> encode_seat(Rank rank, ConstBytes notice, ConstBytes membership) {
  WireWriter out;
  out.put(static_cast<std::int32_t>(rank));
  out.put(static_cast<std::uint32_t>(notice.size()));
  out.put_raw(notice);
  out.put_raw(membership);
  return std::move(out).take();
}

Result<Seat> decode_seat(ConstBytes bytes) {
  WireReader in(bytes);
  Seat seat;
  seat.rank = in.get<std::int32_t>();
  seat.notice = in.get_list<std::byte>();
  if (!in.ok()) {
    return corrupt("a seat is cut short");
  }
  const std::size_t before = sizeof(std::int32_t) + sizeof(std::uint32_t) + seat.notice.size();
  SRT_ASSIGN(seat.membership, decode_membership(bytes.subspan(before)));
  if (seat.rank < 0 || seat.rank >= seat.membership.size()) {
    return corrupt("a seat is outside of its membership");
  }
  return seat;
}

}  // namespace sirtaki::rendezvous
