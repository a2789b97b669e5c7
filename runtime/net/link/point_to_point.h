// PointToPoint: messages between two ranks of one epoch. What the collectives are written against.
//
// For: DirectCollectives and GlooCollectives; implemented by Transport (TCP) and InprocEndpoint (in process).
// Thread: everything on loop(); Done runs there too, exactly once, never from inside the call that took it.
// Matching: first in, first out for each (peer, tag, slot). A tag names one operation and is not used again after it
// was cancelled. The receiver says how many bytes it expects: another length, or another `check`, ends both sides'
// operations of that tag with kMismatch.
// Not for: reductions, groups, ordering between tags.
#pragma once

#include <cstdint>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/net/link/tag_group.h"

namespace sirtaki::net {

struct Envelope {
  Rank peer = -1;
  OpTag tag;
  std::uint32_t slot = 0;
  std::uint32_t check = 0;    // what both sides must agree on besides the length: kind, dtype, total size...
  std::int32_t priority = 0;  // sends only; smaller goes first among queued bytes
};

class PointToPoint {
 public:
  PointToPoint() = default;
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;
  virtual ~PointToPoint() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Loop& loop() = 0;

  // The memory belongs to the link until Done; a send's Done says that the bytes are no longer needed here, not that
  // they arrived. A peer that is gone: kPeerLost naming it.
  virtual void send(const Envelope& envelope, ConstBytes data, Done done) = 0;
  virtual void recv(const Envelope& envelope, Bytes out, Done done) = 0;

  // What the job calls `peer`, for messages to people.
  virtual Rank job_rank(Rank peer) const { return peer; }

  // No rank is on another host than the others; the same answer on all of them.
  virtual bool one_host() const { return false; }
  // The shortest round trip seen to the farthest peer; zero while none is known.
  virtual Duration round_trip() const { return Duration(0); }

  // Ends what is in flight under `tags` with `cause`; what is started or arrives under them later ends with it too.
  // When the call returns no memory of those tags is touched any more.
  virtual void cancel(TagGroup tags, Status cause) = 0;
  // Every rank has cancelled them and then sent something that has arrived here, so nothing comes under them any more.
  virtual void forget(const TagGroup& /*tags*/) {}

  // Ends everything in flight with `cause` and every later operation; the first cause is kept.
  virtual void fail(Status cause) = 0;
};

}  // namespace sirtaki::net
