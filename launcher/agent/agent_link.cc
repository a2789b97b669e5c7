#include "launcher/agent/agent_link.h"

#include <signal.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include "launcher/agent/host_facts.h"
#include "launcher/process/processes.h"
#include "launcher/process/ssh.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kMaxMessages = std::size_t{8} << 10;
// Longest wait for the end of the process after the end of its output.
constexpr auto kExitLinger = std::chrono::seconds(2);
// Pings in which kExitLinger has passed.
constexpr int kClosedPings = 2;

}  // namespace

AgentLink::AgentLink(asio::io_context& io, Placement placement, Events events)
    : io_(io), placement_(std::move(placement)), events_(std::move(events)), linger_(io) {}

void AgentLink::start(const AgentCommand& command) {
  remote_path_ = command.remote_path;
  SpawnSpec spec;
  spec.argv = command.argv;
  spec.env = command.env;
  spec.pipe_stdin = true;
  spec.open_files = command.open_files;
  // ssh may hang on a dead line and has to be killed; a local agent sees the end of its stdin.
  spec.death_signal = placement_.local ? 0 : SIGKILL;
  // Schedulers signal every process of a job at once; the connection must outlive the orderly end of the ranks.
  spec.ignored =
      placement_.local ? std::vector{SIGUSR1, SIGUSR2} : std::vector{SIGUSR1, SIGUSR2, SIGTERM, SIGHUP, SIGINT};
  Result<ChildProcess> child = spawn(spec, nullptr);
  if (!child) {
    const Status status = child.status();
    asio::post(io_, [this, status] { give_up(status.with_context("host " + placement_.host)); });
    return;
  }
  pid_ = child->pid;
  ChannelEnds ends{std::move(child->out), std::move(child->in), nullptr, {}};
  channel_ = std::make_unique<FrameChannel>(io_, std::move(ends), true, channel_handlers());
  messages_in_ = std::make_unique<asio::posix::stream_descriptor>(io_, child->err.release());
  channel_->start();
  read_messages();
}

void AgentLink::adopt(ChannelEnds ends) {
  joined_ = true;
  wait_status_ = 0;  // it is no child of this process
  channel_ = std::make_unique<FrameChannel>(io_, std::move(ends), true, channel_handlers());
  channel_->start();
}

FrameChannel::Handlers AgentLink::channel_handlers() {
  return {[this](const Frame& frame) { on_channel_frame(frame); },
          [this](const Status& status) { on_channel_end(status); }};
}

void AgentLink::on_channel_frame(const Frame& frame) {
  unanswered_ = 0;
  if (state_ == State::kReady) {
    events_.on_frame(*this, frame);
    return;
  }
  if (state_ != State::kStarting) {
    return;
  }
  Result<Hello> hello = frame.type == FrameType::kHello ? decode_hello(frame.payload) : corrupt("no greeting");
  if (!hello) {
    give_up(hello.status().with_context("host " + placement_.host));
    return;
  }
  hello_ = std::move(*hello);
  if (hello_.protocol != kProtocol || hello_.version != library_version()) {
    const std::string program = joined_ ? "sirtakirun" : remote_path_;
    const std::string path = joined_ ? "" : ", or name the right one with --remote-path";
    give_up({Code::kMismatch, "host " + placement_.host + ": " + program + " there is version " + hello_.version +
                                  ", here it is " + library_version() + "; install the same version on all hosts" +
                                  path});
    return;
  }
  state_ = State::kReady;
  events_.on_ready(*this);
}

void AgentLink::on_channel_end(const Status& status) {
  channel_end_ = status;
  channel_->close();
  if (!status.ok() && pid_ > 0) {
    kill(pid_, placement_.local ? SIGTERM : SIGKILL);  // its frames are no longer valid
  }
  linger_.expires_after(kExitLinger);
  linger_.async_wait([this, alive = weak_from_this()](const error_code& error) {
    if (!error && !alive.expired() && !wait_status_ && pid_ > 0) {
      kill(pid_, SIGKILL);
    }
  });
  resolve();
}

void AgentLink::on_child_exit(pid_t pid, int wait_status) {
  if (pid != pid_ || wait_status_) {
    return;
  }
  wait_status_ = wait_status;
  resolve();
}

void AgentLink::read_messages() {
  // A read that has ended may call this when the link is gone: the same turn of the loop may remove it.
  const auto on_read = [this, alive = weak_from_this()](const error_code& error, std::size_t size) {
    if (alive.expired() || error == asio::error::operation_aborted) {
      return;
    }
    if (error) {
      error_code ignored;
      messages_in_->close(ignored);
      return;
    }
    take_messages(std::string_view(message_buffer_.data(), size));
    read_messages();
  };
  messages_in_->async_read_some(asio::buffer(message_buffer_), on_read);
}

void AgentLink::take_messages(std::string_view bytes) {
  messages_.append(bytes);
  if (messages_.size() > kMaxMessages) {
    messages_.erase(0, messages_.size() - kMaxMessages);
  }
  if (state_ != State::kReady) {
    return;
  }
  message_line_.append(bytes);
  std::size_t end = 0;
  while ((end = message_line_.find('\n')) != std::string::npos) {
    events_.on_message(*this, message_line_.substr(0, end));
    message_line_.erase(0, end + 1);
  }
  if (message_line_.size() > kMaxMessages) {
    message_line_.clear();
  }
}

// Reads the rest of standard error: all text the process wrote is in the pipe by now, in whatever order the loop learns
// of the two ends.
void AgentLink::drain_messages() {
  if (!messages_in_) {
    return;
  }
  error_code error;
  messages_in_->non_blocking(true, error);
  while (!error && messages_in_->is_open()) {
    const std::size_t size = messages_in_->read_some(asio::buffer(message_buffer_), error);
    take_messages(std::string_view(message_buffer_.data(), size));
  }
}

// Reports the cause, which is known once the process has ended and all its output has been read.
void AgentLink::resolve() {
  if (!channel_end_ || !wait_status_ || ended()) {
    return;
  }
  linger_.cancel();
  drain_messages();
  if (state_ == State::kStarting) {
    give_up(why_ended());
    return;
  }
  state_ = State::kGone;
  const bool in_order = exit_code_of(*wait_status_) == 0 && channel_end_->ok() && (finishing_ || !joined_);
  const Status status = in_order ? Status() : why_ended();
  events_.on_gone(*this, status);
}

Status AgentLink::why_ended() const {
  const std::string where = "host " + placement_.host + ": ";
  if (joined_) {
    const std::string cause = channel_end_->ok() ? "" : " (" + std::string(channel_end_->text()) + ")";
    return unavailable(where + "its connection has ended" + cause);
  }
  if (!channel_end_->ok() && channel_end_->code() == Code::kCorrupt) {
    const std::string junk = channel_->junk().substr(0, 200);
    return corrupt(where + "the program that answers there is not an agent of sirtakirun (" +
                   std::string(channel_end_->text()) + (junk.empty() ? "" : "; it begins with: " + junk) +
                   "); check --remote-path");
  }
  if (placement_.local) {
    return unavailable(where + "the agent ended with " + describe_wait_status(*wait_status_) +
                       (messages_.empty() ? "" : ": " + messages_));
  }
  if (state_ == State::kStarting) {
    return explain_ssh_failure(placement_.host, remote_path_, *wait_status_, messages_, channel_->junk());
  }
  return unavailable(where + "the ssh connection ended (" + describe_wait_status(*wait_status_) +
                     (messages_.empty() ? "" : ": " + messages_) + ")");
}

void AgentLink::give_up(Status status) {
  if (ended()) {
    return;
  }
  state_ = State::kFailed;
  if (joined_ && !channel_end_) {
    tell(std::string(status.text()), 1);
    channel_->finish_writing();
    linger_.expires_after(kExitLinger);
    linger_.async_wait([this, alive = weak_from_this()](const error_code& error) {
      error || alive.expired() ? void() : channel_->close();
    });
  } else {
    cut();
  }
  events_.on_failed(*this, std::move(status));
}

void AgentLink::tell(const std::string& text, int exit_code) {
  if (joined_) {
    send(FrameType::kTell, encode(Tell{text, exit_code}));
  }
}

void AgentLink::finish() {
  finishing_ = true;
  if (channel_) {
    channel_->finish_writing();
  }
}

void AgentLink::cut() {
  if (channel_) {
    channel_->close();
  }
  if (messages_in_) {
    error_code ignored;
    messages_in_->close(ignored);
  }
  linger_.cancel();
  // Behind ssh, closing the pipes ends the agent only while the connection works.
  if (!placement_.local && pid_ > 0 && !wait_status_) {
    kill(pid_, SIGKILL);
  }
  if (state_ == State::kReady) {
    state_ = State::kGone;
  }
}

bool AgentLink::ping() {
  if (ended() && ++closed_pings_ > kClosedPings) {
    channel_.reset();  // it was closed long ago, so no handler needs it
  }
  if (state_ != State::kReady) {
    return true;
  }
  if (++unanswered_ > kMaxUnanswered) {
    return false;
  }
  send(FrameType::kPing, {});
  return true;
}

AgentLinks take_spent(AgentLinks& links, const std::function<bool(const AgentLink&)>& is_needed) {
  AgentLinks taken;
  std::erase_if(links, [&](const auto& link) {
    const bool takes = link->spent() && !is_needed(*link);
    takes ? taken.push_back(link) : void();
    return takes;
  });
  return taken;
}

}  // namespace sirtaki::launcher
