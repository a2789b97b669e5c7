// Records in the tables of Channel; for channel*.cc only.
#pragma once

#include "runtime/net/tcp/channel.h"

namespace sirtaki::net {

// A receive that waits for its message, or whose fragments are arriving.
struct Channel::Posted {
  OpTag tag;
  std::uint32_t slot = 0;
  std::uint32_t check = 0;
  Bytes out;
  Done done;
  bool permitted = false;
  bool pushed = false;     // it comes as kPushed, and holds a part of the window
  bool announced = false;  // its kRts has arrived
  std::size_t received = 0;
  TimePoint begin;
};

// A send without permission yet.
struct Channel::Waiting {
  Envelope envelope;
  ConstBytes data;
  Done done;
};

// A message that arrived before its receive: its bytes, or its announcement.
struct Channel::Early {
  Expectation there;
  bool announced_only = false;
  bool pushed = false;  // it comes as kPushed
  bool whole = false;
  std::size_t received = 0;  // kPushed
  std::vector<std::byte> data;
  // Set if the receive is posted while the bytes are still arriving.
  std::unique_ptr<Posted> receiver;
};

}  // namespace sirtaki::net
