// The records of a Channel's tables; for channel*.cc only.
#pragma once

#include "runtime/net/tcp/channel.h"

namespace sirtaki::net {

// A receive that waits, or whose fragments arrive.
struct Channel::Posted {
  OpTag tag;
  std::uint32_t slot = 0;
  std::uint32_t check = 0;
  Bytes out;
  Done done;
  bool permitted = false;
  bool announced = false;  // its kRts has come
  std::size_t received = 0;
  TimePoint begin;
};

// A send that waits for permission.
struct Channel::Waiting {
  Envelope envelope;
  ConstBytes data;
  Done done;
};

// A message that came before its receive: its bytes, or its announcement.
struct Channel::Early {
  Expectation there;
  bool announced_only = false;
  bool whole = false;
  std::vector<std::byte> data;
  // Set when the receive comes while the bytes still arrive.
  std::unique_ptr<Posted> receiver;
};

}  // namespace sirtaki::net
