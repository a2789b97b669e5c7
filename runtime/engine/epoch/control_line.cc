#include "runtime/engine/epoch/control_line.h"

#include <utility>

namespace sirtaki::engine {

Result<std::shared_ptr<ControlLine>> ControlLine::connect(const Config& config, const std::string& server,
                                                          const rendezvous::Secret& secret,
                                                          const std::function<bool()>& interrupted) {
  std::shared_ptr<ControlLine> line(new ControlLine);
  rendezvous::ClientOptions& options = line->options_;
  options.server = server;
  options.secret = secret;
  options.connect_timeout = config.control.connect_timeout;
  options.join_timeout = config.control.join_timeout + config.control.connect_timeout;
  if (config.elastic.min > 0) {
    // The coordinator gives up processes that do not come to the next epoch, so its answer comes earlier.
    options.join_timeout += config.elastic.timeout;
  }
  const Heartbeats heartbeats = heartbeats_of(config);
  options.heartbeat_interval = heartbeats.interval;
  options.heartbeat_timeout = heartbeats.timeout;
  SRT_ASSIGN(line->client_,
             rendezvous::Client::connect(line->loop_, options, *line,
                                         interrupted ? MoveFunction<bool()>(interrupted) : MoveFunction<bool()>()));
  return line;
}

void ControlLine::attach(rendezvous::ClientHandler* handler) {
  loop_.run_sync([&] { handler_ = handler_ == nullptr ? handler : handler_; });
}

void ControlLine::detach(rendezvous::ClientHandler* handler) {
  loop_.run_sync([&] {
    if (handler_ == handler) {
      handler_ = nullptr;
      client_->end_epoch();
    }
  });
}

void ControlLine::on_message(ConstBytes message) {
  if (handler_ != nullptr) {
    handler_->on_message(message);
  }
}

void ControlLine::on_tree(ConstBytes message) {
  if (handler_ != nullptr) {
    handler_->on_tree(message);
  }
}

void ControlLine::on_lost(Rank rank, const Status& cause) {
  if (handler_ != nullptr) {
    handler_->on_lost(rank, cause);
  }
}

void ControlLine::on_left(Rank rank) {
  if (handler_ != nullptr) {
    handler_->on_left(rank);
  }
}

void ControlLine::on_disconnected(const Status& cause) {
  if (handler_ != nullptr) {
    handler_->on_disconnected(cause);
  }
}

}  // namespace sirtaki::engine
