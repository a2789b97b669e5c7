// Outbox: what waits to be written to one connection, by priority, and the pieces being written now.
//
// Frames without payload of their own class (credits, permissions) go first; then the smallest priority number, first
// in first out. A stream is written in fragments, so what is more urgent goes first at the next fragment border.
// Owned by a Channel; its thread. Knows no socket: gather() and written() frame the caller's sendmsg.
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
  TimePoint queued;  // sender: the receiver allowed it; receiver: the same as `begin`
  TimePoint begin;   // the first byte went to, or came from, the kernel
  TimePoint end;     // the last byte did
};

class Outbox {
 public:
  struct Message {
    FrameHeader header;  // of the frame, or of every fragment but for the length
    ConstBytes payload;
    std::int32_t priority = 0;
    Done done;         // when the last byte is in the kernel
    TimePoint queued;  // streams
  };

  explicit Outbox(std::size_t fragment_bytes) : fragment_bytes_(fragment_bytes) {}

  void push_control(const FrameHeader& header);
  void push_frame(Message message);   // one frame, whatever its size
  void push_stream(Message message);  // in fragments

  bool empty() const { return first_ == committed_.size() && control_.empty() && queue_.empty(); }
  // Bytes accepted and not yet written.
  std::uint64_t queued_bytes() const { return queued_bytes_; }

  // Fills `out` with what is to be written next; valid until the next call of anything here. Returns the entries used.
  std::size_t gather(std::span<iovec> out, TimePoint now);
  struct Ended {
    Done done;
    bool stream = false;
    TransferSample sample;  // streams; peer is not filled in
  };
  // `count` bytes were written. Messages that are complete are added to `ended`.
  void written(std::size_t count, TimePoint now, std::vector<Ended>& ended);

  // Takes out what belongs to `tags` and returns its callbacks. A piece that is half written goes on from a copy.
  std::vector<Done> cancel(const TagGroup& tags);
  std::vector<Done> cancel_all();

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
    bool control = false;         // belongs to the connection, not to a message
    bool detached = false;        // its message was cancelled
    OpTag tag;
    bool last = false;  // ends its message, which `item` then holds
    Item item;
  };

  void push(Message message, bool stream);
  void commit(TimePoint now);
  bool commit_frame(Item& item, std::size_t& budget, TimePoint now);
  bool detach(Piece& piece, std::vector<Done>& dones);
  template <class Selects>
  std::vector<Done> cancel_if(Selects selects);

  const std::size_t fragment_bytes_;
  std::uint64_t queued_bytes_ = 0;
  std::deque<FrameHeader> control_;
  std::map<Turn, Item> queue_;
  std::uint64_t pushed_ = 0;
  std::vector<Piece> committed_;  // refilled when all of it is written
  std::size_t first_ = 0;         // of it that is not written
};

}  // namespace sirtaki::net
