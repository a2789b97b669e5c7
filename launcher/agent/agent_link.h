// AgentLink: the launcher's end of one agent connection: to a child process on this host, behind ssh on another, or to
// the process of a host that has joined by itself.
//
// Owned by Job; one thread, the thread of its loop. Reports each change of state once: ready or failed, then frames,
// then gone.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "launcher/agent/channel.h"
#include "launcher/hosts/hosts.h"
#include "launcher/process/spawn.h"
#include "runtime/base/status.h"

namespace sirtaki::launcher {

struct AgentCommand {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // environment of the agent or of ssh
  std::string remote_path;       // path of the agent's program, for messages
  rlim_t open_files = 0;         // see SpawnSpec
};

class AgentLink : public std::enable_shared_from_this<AgentLink> {
 public:
  struct Events {
    std::function<void(AgentLink&)> on_ready;                // the agent sent its hello, and its version is ours
    std::function<void(AgentLink&, Status)> on_failed;       // the agent will never be ready; the text names the remedy
    std::function<void(AgentLink&, const Frame&)> on_frame;  // after on_ready
    std::function<void(AgentLink&, Status)> on_gone;  // after on_ready: the agent has ended, at our request or not
    std::function<void(AgentLink&, std::string)> on_message;  // a line of its stderr, after on_ready
  };
  enum class State { kStarting, kReady, kFailed, kGone };
  // Notes of Job about the host.
  struct Notes {
    std::string start_error;       // empty: no error so far
    std::string endpoint;          // address of the coordinator for the ranks there
    std::uint64_t uncredited = 0;  // bytes of output that have come and are not yet returned as credit
  };

  AgentLink(boost::asio::io_context& io, Placement placement, Events events);

  void start(const AgentCommand& command);
  // Takes the connection of a host that has joined by itself, in place of start().
  void adopt(ChannelEnds ends);
  // Ends this end at once, as a failure: on_failed, and no on_gone. Tells a host that has joined why.
  void give_up(Status status);
  // Shows the user of a host that has joined a text; see Tell.
  void tell(const std::string& text, int exit_code = -1);
  void send(FrameType type, ConstBytes payload) { channel_ ? channel_->send(type, payload) : void(); }
  // Reports the end of process `pid`, ssh or the agent's supervisor. Ignores processes of other links.
  void on_child_exit(pid_t pid, int wait_status);
  // Asks the agent to end; it ends after its ranks.
  void finish();
  // Closes this end at once, without on_gone: the agent ends its ranks when it notices.
  void cut();
  // Counts one unanswered ping and sends the next; returns false when too many are unanswered.
  bool ping();

  State state() const { return state_; }
  const Placement& placement() const { return placement_; }
  const Hello& hello() const { return hello_; }
  pid_t pid() const { return pid_; }
  // Returns whether the host has joined by itself.
  bool joined() const { return joined_; }
  // Returns whether finish() has been called.
  bool finishing() const { return finishing_; }
  bool ended() const { return state_ == State::kFailed || state_ == State::kGone; }
  // Returns whether it has ended, its process is reaped, and no handler of its connection is left, as several calls of
  // ping() find.
  bool spent() const { return ended() && !channel_ && (pid_ < 0 || wait_status_); }

  Notes notes;

 private:
  FrameChannel::Handlers channel_handlers();
  void on_channel_frame(const Frame& frame);
  void on_channel_end(const Status& status);
  void read_messages();
  void take_messages(std::string_view bytes);
  void drain_messages();
  void resolve();
  Status why_ended() const;

  static constexpr int kMaxUnanswered = 12;  // one ping every two seconds

  boost::asio::io_context& io_;
  const Placement placement_;
  const Events events_;
  std::string remote_path_;
  State state_ = State::kStarting;
  Hello hello_;
  pid_t pid_ = -1;
  std::optional<int> wait_status_;
  std::unique_ptr<FrameChannel> channel_;
  std::optional<Status> channel_end_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> messages_in_;
  std::array<char, 4096> message_buffer_{};
  std::string messages_;      // last bytes of its standard error
  std::string message_line_;  // unfinished line of its standard error
  boost::asio::steady_timer linger_;
  int unanswered_ = 0;
  int closed_pings_ = 0;  // since its end
  bool finishing_ = false;
  bool joined_ = false;
};

using AgentLinks = std::vector<std::shared_ptr<AgentLink>>;
// Removes the links that are spent, unless they are needed: a job may see many hosts come and go. Returns them.
AgentLinks take_spent(AgentLinks& links, const std::function<bool(const AgentLink&)>& is_needed);

}  // namespace sirtaki::launcher
