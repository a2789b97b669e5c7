// Outbox: messages that wait to be written to one connection, by priority, and the pieces being written now.
//
// Control frames (credits, permissions) go first, then messages by ascending priority number, first in first out. A
// stream is written in fragments, so a more urgent message goes first at the next fragment boundary.
// Owned by a Channel; used on its thread. Has no socket: the caller calls sendmsg between gather() and written().
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/net/link/tag_group.h"
#include "runtime/net/tcp/frame.h"

namespace sirtaki::net {

// A large transfer that ended, for the link model.
struct TransferSample {
  Rank peer = -1;
  bool sent = false;  // this rank was the sender
  std::uint64_t bytes = 0;
  TimePoint queued;  // sender: it was permitted or pushed; receiver: equal to `begin`
  TimePoint begin;   // the first byte was passed to, or by, the kernel
  TimePoint end;     // the last byte was
};

class Outbox {
 public:
  struct Message {
    FrameHeader header;  // header of the frame, or of every fragment except for the length
    ConstBytes payload;
    std::int32_t priority = 0;
    Done done;         // called once the last byte is in the kernel
    TimePoint queued;  // streams only
  };

  explicit Outbox(std::size_t fragment_bytes) : fragment_bytes_(fragment_bytes) {}

  void push_control(const FrameHeader& header);
  void push_frame(Message message);   // queues one frame of any size
  void push_stream(Message message);  // queues a message that is written in fragments

  bool empty() const { return first_ == committed_.size() && control_.empty() && queue_.empty(); }
  // Returns the number of bytes accepted and not yet written.
  std::uint64_t queued_bytes() const { return queued_bytes_; }

  // Fills `out` with the memory to write next, valid until the next call of any method. Returns the entries used.
  std::size_t gather(std::span<iovec> out, TimePoint now);
  struct Ended {
    Done done;
    bool stream = false;
    TransferSample sample;  // streams only; `peer` is not set
  };
  // Takes notice of `count` written bytes. Adds messages that are complete to `ended`.
  void written(std::size_t count, TimePoint now, std::vector<Ended>& ended);

  // Removes the messages of `tags`. A piece that is partly written continues from a copy.
  struct Cancelled {
    std::vector<Done> dones;
    std::vector<std::size_t> unannounced;  // sizes of kEager and kPush messages of which the peer learns nothing
  };
  Cancelled cancel(const TagGroup& tags);
  Cancelled cancel_all();

 private:
  struct Item {
    Message message;
    bool stream = false;
    std::size_t offset = 0;  // bytes of the payload in committed pieces
    TimePoint begin;
  };
  using Turn = std::pair<std::int32_t, std::uint64_t>;  // priority, then order of arrival
  struct Piece {
    FrameBytes header;
    ConstBytes payload;
    std::vector<std::byte> copy;  // backs `payload` after a cancellation
    std::size_t offset = 0;       // bytes of header and payload written
    bool control = false;         // a frame of the connection, not of a message
    bool detached = false;        // the message was cancelled
    OpTag tag;
    bool last = false;  // ends the message, which `item` then holds
    Item item;
  };

  void push(Message message, bool stream);
  void commit(TimePoint now);
  bool commit_frame(Item& item, std::size_t& budget, TimePoint now);
  static void drop(Message& message, bool unsent, Cancelled& cancelled);
  bool detach(Piece& piece, Cancelled& cancelled);
  template <class Selects>
  Cancelled cancel_if(Selects selects);

  const std::size_t fragment_bytes_;
  std::uint64_t queued_bytes_ = 0;
  std::deque<FrameHeader> control_;
  std::map<Turn, Item> queue_;
  std::uint64_t pushed_ = 0;
  std::vector<Piece> committed_;  // refilled once all pieces are written
  std::size_t first_ = 0;         // the first piece that is not written
};

}  // namespace sirtaki::net
