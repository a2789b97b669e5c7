#include "launcher/process/child_output.h"

#include <signal.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace sirtaki::launcher {

using boost::system::error_code;

struct ChildOutput::Run {
  explicit Run(boost::asio::io_context& io) : timer(io) {}

  pid_t pid = -1;
  End end;
  std::function<void(const End&)> on_end;
  std::array<std::unique_ptr<boost::asio::posix::stream_descriptor>, 2> pipes;
  boost::asio::steady_timer timer;
};

Status ChildOutput::start(SpawnSpec spec, Duration patience, std::function<void(const End&)> on_end) {
  spec.death_signal = SIGKILL;
  Result<ChildProcess> child = spawn(spec, nullptr);
  if (!child) {
    return child.status();
  }
  run_ = std::make_shared<Run>(io_);
  run_->pid = child->pid;
  run_->on_end = std::move(on_end);
  std::size_t which = 0;
  for (FileDescriptor* fd : {&child->out, &child->err}) {
    run_->pipes.at(which) = std::make_unique<boost::asio::posix::stream_descriptor>(io_, fd->release());
    run_->pipes.at(which)->non_blocking(true);
    read(run_, which++);
  }
  run_->timer.expires_after(patience);
  run_->timer.async_wait([run = std::weak_ptr<Run>(run_)](const error_code& error) {
    if (const auto present = run.lock(); present && !error && present->pid > 0) {
      present->end.late = true;
      kill(-present->pid, SIGKILL);  // the leader of a session of its own, so this ends all that it has started
    }
  });
  return {};
}

ChildOutput::~ChildOutput() {
  if (run_) {
    kill(-std::exchange(run_->pid, -1), SIGKILL);
    run_->timer.cancel();
    for (const auto& pipe : run_->pipes) {
      error_code ignored;
      pipe->close(ignored);
    }
  }
}

// Reads only when there is data, so that no byte is on its way when the command ends.
void ChildOutput::read(const std::shared_ptr<Run>& run, std::size_t which) {
  boost::asio::posix::stream_descriptor& pipe = *run->pipes.at(which);
  pipe.async_wait(boost::asio::posix::stream_descriptor::wait_read, [run, which](const error_code& error) {
    if (!error && drain(*run, which)) {
      read(run, which);
    }
  });
}

// Returns whether more may come. A command that writes without end must not keep the loop from its other work.
bool ChildOutput::drain(Run& run, std::size_t which) {
  boost::asio::posix::stream_descriptor& pipe = *run.pipes.at(which);
  std::string& text = run.end.texts.at(which);
  std::array<char, 4096> buffer;
  error_code error;
  for (std::size_t seen = 0; !error && pipe.is_open() && seen < kMostText;) {
    const std::size_t size = pipe.read_some(boost::asio::buffer(buffer), error);
    text.append(buffer.data(), std::min(size, kMostText - text.size()));
    seen += size;
  }
  const bool empty = error == boost::asio::error::would_block || error == boost::asio::error::try_again;
  return pipe.is_open() && (!error || empty);
}

bool ChildOutput::runs(pid_t pid) const {
  return run_ && pid == run_->pid;
}

void ChildOutput::on_child_exit(pid_t pid, int wait_status) {
  if (!runs(pid)) {
    return;
  }
  const std::shared_ptr<Run> run = std::exchange(run_, nullptr);
  run->pid = -1;
  run->timer.cancel();
  run->end.wait_status = wait_status;
  for (std::size_t which = 0; which < run->pipes.size(); ++which) {
    drain(*run, which);  // all that the command has written is in the pipe by now
    error_code ignored;
    run->pipes.at(which)->close(ignored);
  }
  run->on_end(run->end);
}

}  // namespace sirtaki::launcher
