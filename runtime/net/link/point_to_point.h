// PointToPoint: the interface for messages between two ranks of one epoch. Collectives use only this interface.
//
// Used by DirectCollectives and GlooCollectives; implemented by Transport (TCP) and InprocEndpoint (in process).
// Thread: everything on loop(). Done runs there, too, exactly once, never inside the call that took it.
// Matching: first in, first out for each (peer, tag, slot). A tag names one operation, and is not used again after it
// was cancelled. The receiver says how many bytes it expects: if the sender has another length, or another `check`, the
// operations of that tag end with kMismatch on both sides.
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
  std::uint32_t check = 0;    // fingerprint that both sides must agree on: kind, dtype, total size...
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

  // The memory belongs to the link until Done. Done of a send means that the bytes are no longer needed here, not that
  // they have arrived. If the peer is lost, Done receives kPeerLost with its rank.
  virtual void send(const Envelope& envelope, ConstBytes data, Done done) = 0;
  virtual void recv(const Envelope& envelope, Bytes out, Done done) = 0;

  // Returns the rank of `peer` in the job, for error texts.
  virtual Rank job_rank(Rank peer) const { return peer; }

  // Returns whether all ranks are on one host; equal on all ranks.
  virtual bool one_host() const { return false; }
  // Returns the shortest round trip measured to the farthest peer; zero while none is known.
  virtual Duration round_trip() const { return Duration(0); }

  // Ends all operations of `tags` with `cause`, those started later and messages that arrive later included. Memory of
  // these tags is not touched after the call has returned.
  virtual void cancel(TagGroup tags, Status cause) = 0;
  // Forgets cancelled tags. Requires that every rank has cancelled them and then sent a message that has arrived here,
  // so that no message of these tags can still arrive.
  virtual void forget(const TagGroup& /*tags*/) {}

  // Ends all operations with `cause`, and every later one. The first cause is kept.
  virtual void fail(Status cause) = 0;
};

}  // namespace sirtaki::net
