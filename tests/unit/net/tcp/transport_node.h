// The transport of one rank on a loop of its own, for tests that connect several ranks.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/tcp/endpoints.h"
#include "runtime/net/tcp/transport.h"
#include "tests/unit/net/tcp/channel_pair.h"

namespace sirtaki::net::testing {

using rendezvous::AsioLoop;
using rendezvous::Secret;

inline constexpr Epoch kEpoch(5);

// The result of a callback, read by the thread of the test.
struct SharedOutcome {
  std::atomic<int> calls{0};
  Status status;  // valid once calls != 0
  Done done() {
    return [this](Status result) {
      status = std::move(result);
      ++calls;
      notify();
    };
  }
};

// One rank with its loop and its transport.
struct Node {
  explicit Node(const Secret& secret, const TransportOptions& options = {}, const std::string& name = "node")
      : loop(name) {
    run([&] { transport = std::make_unique<Transport>(loop, secret, options); });
  }
  ~Node() {
    run([&] { transport.reset(); });
  }
  template <class Fn>
  void run(Fn fn) {
    loop.run_sync([&fn] { fn(); });
  }
  Status listen() {
    Status status;
    run([&] { status = transport->listen(); });
    return status;
  }

  AsioLoop loop;
  std::unique_ptr<Transport> transport;
};

inline rendezvous::Membership membership_of(const std::vector<std::string>& endpoints) {
  rendezvous::Membership membership;
  membership.epoch = kEpoch;
  for (std::size_t rank = 0; rank < endpoints.size(); ++rank) {
    rendezvous::Member member;
    member.rank = static_cast<Rank>(rank);
    member.hostname = "host" + std::to_string(rank);
    member.data_endpoints = {endpoints[rank]};
    membership.members.push_back(member);
  }
  return membership;
}

inline std::string endpoint_of(const Node& node, const std::string& host = "127.0.0.1") {
  return format_endpoint({host, node.transport->port()});
}

inline Secret make_secret() {
  return *Secret::generate();
}

inline Envelope to(Rank peer, std::uint64_t tag) {
  return {peer, OpTag(tag), 0, 0, 0};
}

}  // namespace sirtaki::net::testing
