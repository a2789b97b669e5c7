// Channel: the protocol with one peer, without a socket: matching, eager window, permissions, fragments.
//
// A message of up to eager_bytes is sent at once while the window of the peer has room. A larger message is announced
// first (kRts), and its receiver permits it (kCts) as soon as the receive is posted. If the peer is far, permission
// takes longer than a copy of bytes that arrive too early: messages of up to push_bytes are then sent without it, too,
// in fragments (kPush, kPushed), so that urgent ones still pass between these. Messages of one tag and slot that are
// under way together must be all larger than both limits, or all not.
// Used by Connection, which moves the bytes, and by the fuzzer. Owned by a Connection; used on the loop of the
// transport. Callbacks go to the given Completions, never inline. read() returns kCorrupt for input that no correct
// peer sends; the caller must then fail the channel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/net/link/completions.h"
#include "runtime/net/link/mismatch.h"
#include "runtime/net/link/point_to_point.h"
#include "runtime/net/link/tag_table.h"
#include "runtime/net/link/tombstones.h"
#include "runtime/net/tcp/outbox.h"

namespace sirtaki::net {

struct ChannelLimits {
  std::size_t eager_bytes = 64 * 1024;
  std::size_t window_bytes = 8 * 1024 * 1024;  // eager bytes that a peer may send before they are received
  std::size_t fragment_bytes = 512 * 1024;
  bool operator==(const ChannelLimits&) const = default;
};

// Returns the exponent of two of push_bytes on a connection with this round trip; 0: no message is pushed.
std::uint8_t push_exponent(Duration round_trip, const ChannelLimits& limits);

// kWelcome carries the rank that accepted, its limits, which must be equal on both sides, and the push exponent that
// the acceptor has chosen for both.
FrameHeader welcome_frame(Epoch epoch, Rank acceptor, const ChannelLimits& limits, std::uint8_t push_exponent = 0);
Rank acceptor_of_welcome(const FrameHeader& header);
ChannelLimits limits_of_welcome(const FrameHeader& header);

struct PeerCounters {
  std::uint64_t bytes_sent = 0;  // payload
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_dropped = 0;  // arrived for an operation that had ended
};

class Channel {
 public:
  // State that the channels of one transport share. All of it must outlive the channel.
  struct Shared {
    Rank rank = -1;
    Epoch epoch;
    ChannelLimits limits;
    Completions* completions = nullptr;
    const Tombstones* tombstones = nullptr;
    const Loop* clock = nullptr;
    std::vector<TransferSample>* samples = nullptr;
  };

  // Writes fragments of at most `fragment_bytes`, and never more than the limits allow.
  Channel(const Shared& shared, Rank peer, std::size_t fragment_bytes = SIZE_MAX);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  // Sets push_bytes to a power of two; 0: no message is pushed. Call before anything is sent or received.
  void set_push_exponent(std::uint8_t exponent) { push_exponent_ = exponent; }
  // Queues the first frame of the side that accepted the connection.
  void welcome();
  // Queues the last frame. Requires fail() before.
  void say_bye();

  void send(const Envelope& envelope, ConstBytes data, Done done);
  void recv(const Envelope& envelope, Bytes out, Done done);
  // See PointToPoint::cancel(). Requires that the caller has added the tombstone.
  void cancel(const TagGroup& tags, const Status& cause);
  // Ends every operation with `cause`, and every later one; the first cause is kept. With `keep_arrived`, messages that
  // have arrived completely can still be received.
  void fail(const Status& cause, bool keep_arrived);

  // Writing. See Outbox.
  bool wants_write() const { return !outbox_.empty(); }
  std::size_t gather(std::span<iovec> out) { return outbox_.gather(out, shared_.clock->now()); }
  void written(std::size_t count);

  // Reading. targets() returns the memory for the next bytes, arrived() takes `count` of them; read() takes bytes that
  // lie elsewhere.
  std::size_t targets(std::span<iovec> out);
  Status arrived(std::size_t count);
  Status read(ConstBytes bytes);

  Rank peer() const { return peer_; }
  bool peer_said_bye() const { return peer_bye_; }
  std::uint64_t queued_bytes() const { return outbox_.queued_bytes(); }
  const PeerCounters& counters() const { return counters_; }

 private:
  struct Posted;
  struct Waiting;
  struct Early;
  // The frame being read.
  struct Incoming {
    FrameHeader header;
    std::uint64_t left = 0;         // bytes of the payload to come
    std::byte* to = nullptr;        // the next byte of the payload; nullptr: the payload is dropped
    Posted* data = nullptr;         // kData, kPushed: the message in posted_ that the frame belongs to
    std::unique_ptr<Posted> eager;  // kEager: its receive, taken out of posted_
    Early* early = nullptr;         // kEager or kPushed without a receive
  };

  static std::size_t cost(std::size_t bytes);
  // Returns the size of the largest message that is pushed, above eager_bytes; 0: none is.
  std::size_t push_bytes() const { return push_exponent_ == 0 ? 0 : std::size_t{1} << push_exponent_; }
  Expectation expected(const Posted& posted) const;
  FrameHeader frame(FrameType type, const Envelope& envelope, std::uint64_t length) const;
  void complete(Done done, Status status) { shared_.completions->add(std::move(done), std::move(status)); }

  // channel_send.cc
  void send_eager(const Envelope& envelope, ConstBytes data, Done done);
  void push(std::unique_ptr<Waiting> waiting);
  void announce(FrameType type, const Envelope& envelope, std::size_t bytes);
  void start_stream(FrameType type, std::unique_ptr<Waiting> waiting);
  Status on_cts(const FrameHeader& header);
  Status on_credit(const FrameHeader& header);
  void on_reject(const FrameHeader& header);
  void cancel_sends(const TagGroup& tags, const Status& cause);
  void fail_sends(const Status& cause);

  // channel.cc
  Status on_bytes(ConstBytes& bytes);
  Status on_header(const FrameHeader& header);
  void on_payload_end();
  void on_bye();

  // channel_recv.cc
  void take_early(std::unique_ptr<Early> early, const Envelope& envelope, std::unique_ptr<Posted> posted);
  void finish_early(std::unique_ptr<Early> early, std::unique_ptr<Posted> posted);
  void reject(const Envelope& envelope, Posted& posted, const Expectation& there);
  void permit(const Envelope& envelope, Posted& posted);
  void give_credit(std::size_t bytes);
  std::vector<std::byte> early_memory(std::size_t bytes);
  void keep_memory(std::vector<std::byte> memory);
  Status take_window(std::size_t length);
  Status on_eager(const FrameHeader& header);
  Status on_push(const FrameHeader& header);
  Status on_pushed(const FrameHeader& header);
  Status on_fragment(const FrameHeader& header, Posted& posted);
  Status on_rts(const FrameHeader& header);
  Status on_data(const FrameHeader& header);
  void on_eager_end();
  void on_early_end(Early& target);
  void on_data_end();
  void cancel_receives(const TagGroup& tags, const Status& cause);
  void fail_receives(const Status& cause, bool keep_arrived);

  const Shared shared_;
  const Rank peer_;
  std::uint8_t push_exponent_ = 0;
  Status failed_;
  bool peer_bye_ = false;
  PeerCounters counters_;

  // Sending.
  Outbox outbox_;
  std::size_t credit_;                          // free bytes in the window of the peer
  TagTable<std::unique_ptr<Waiting>> waiting_;  // large messages without permission
  TagTable<Expectation> permits_;               // permissions that arrived before their message
  std::vector<Outbox::Ended> ended_;

  // Receiving.
  TagTable<std::unique_ptr<Posted>> posted_;
  TagTable<std::unique_ptr<Early>> early_;     // messages that arrived before their receive
  std::vector<std::vector<std::byte>> spare_;  // memory of early messages, for reuse
  std::size_t spare_bytes_ = 0;                // at most the window, and at most 1 MiB
  std::size_t window_used_ = 0;
  std::size_t credit_due_ = 0;  // free again; returned to the peer in one message

  // The frame being read.
  std::vector<std::byte> scratch_;
  std::size_t scratch_begin_ = 0;
  std::size_t scratch_end_ = 0;
  Incoming incoming_;
};

}  // namespace sirtaki::net
