// FrameChannel: sends and receives frames of the agent protocol over a pair of pipes or a socket, on a Boost.Asio loop.
//
// Used by both ends: the launcher for each agent, the agent for its launcher. One thread, the thread of the loop. The
// callbacks may close() the channel but must not destroy it.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "launcher/process/spawn.h"
#include "runtime/base/status.h"
#include "runtime/rendezvous/auth/stream_cipher.h"

namespace sirtaki::launcher {

// The two directions of a connection.
struct ChannelEnds {
  FileDescriptor in;
  FileDescriptor out;
  std::unique_ptr<rendezvous::StreamCipher> cipher;  // null: the bytes go as they are
  std::vector<std::byte> received;                   // bytes that have come already
};
// Takes a socket after its handshake, whose bytes are encrypted from there on. Returns kUnavailable when this process
// has no descriptor left.
Result<ChannelEnds> socket_ends(FileDescriptor socket, rendezvous::StreamCipher cipher,
                                std::vector<std::byte> received);

class FrameChannel {
 public:
  struct Handlers {
    std::function<void(const Frame&)> on_frame;
    // Called once, as the last callback, when the other side has closed (ok), broke the protocol, or the pipe failed.
    std::function<void(const Status&)> on_end;
  };

  // See FrameDecoder for `expect_preamble`.
  FrameChannel(boost::asio::io_context& io, ChannelEnds ends, bool expect_preamble, Handlers handlers);

  void start();  // begins to read
  void send(FrameType type, ConstBytes payload);
  void send_raw(std::string_view text);           // sends the preamble
  std::size_t queued() const { return queued_; }  // bytes that the pipe has not taken yet
  // Closes the writing side after all queued bytes are written, so that the other side sees the end.
  void finish_writing();
  void close();  // closes both sides at once; on_end is not called
  const std::string& junk() const { return decoder_.junk(); }

 private:
  void read_more();
  void take(ConstBytes bytes);
  void enqueue(std::vector<std::byte> bytes);
  void write_more();
  void end(const Status& status);

  boost::asio::posix::stream_descriptor in_;
  boost::asio::posix::stream_descriptor out_;
  std::unique_ptr<rendezvous::StreamCipher> cipher_;
  std::vector<std::byte> received_;
  FrameDecoder decoder_;
  Handlers handlers_;
  std::array<std::byte, std::size_t{64} << 10> buffer_{};
  std::deque<std::vector<std::byte>> queue_;
  std::size_t queued_ = 0;
  bool writing_ = false;
  bool finish_after_queue_ = false;
  bool ended_ = false;
};

}  // namespace sirtaki::launcher
