#include "runtime/engine/epoch/control_line.h"

#include <algorithm>
#include <utility>

#include "runtime/control/elastic/messages.h"
#include "runtime/rendezvous/link/sockets.h"

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
  line->elastic_ = config.elastic.min > 0;
  if (line->elastic_) {
    // The coordinator gives up processes that do not come to the next epoch, so its answer comes earlier. One that
    // wants to join waits for the programs of the others, as long as they take.
    options.join_timeout =
        config.elastic.max > 0 ? rendezvous::kLongestTimeout : options.join_timeout + config.elastic.timeout;
  }
  const Heartbeats heartbeats = heartbeats_of(config);
  options.heartbeat_interval = heartbeats.interval;
  options.heartbeat_timeout = heartbeats.timeout;
  SRT_ASSIGN(line->client_,
             rendezvous::Client::connect(line->loop_, options, *line,
                                         interrupted ? MoveFunction<bool()>(interrupted) : MoveFunction<bool()>()));
  return line;
}

Result<rendezvous::Membership> ControlLine::join(rendezvous::JoinRequest request) {
  if (!elastic_) {
    return client_->join(request);
  }
  const bool first = last_ == Epoch();
  request.report = control::encode(control::RosterReport(
      control::Regroup{last_, agreed_, !first && has_state_, admits_, why_, frozen_, std::exchange(unreachable_, {})}));
  SRT_ASSIGN(rendezvous::Membership membership, client_->join(request));
  SRT_ASSIGN(const control::RosterNotice notice, control::decode_roster_notice(client_->notice()));
  const auto* formed = std::get_if<control::EpochFormed>(&notice);
  if (formed == nullptr) {
    return corrupt("the coordinator has not said which steps count");
  }
  if (!first && formed->seats[static_cast<std::size_t>(formed->rank)].old_rank < 0) {
    return Status(Code::kPeerLost,
                  "this rank lacks results of a step that the others have, and cannot go on with them");
  }
  last_ = membership.epoch;
  has_state_ = has_state_ || last_ == Epoch(1);  // the state of the job is that with which its first ranks begin
  grows_ = formed->grows;
  agreed_ = 0;
  settled_ = formed->change;
  why_ = {};
  for (const control::StreamReport& report : std::exchange(frozen_, {})) {
    if (std::ranges::any_of(formed->streams, [&](const control::StreamVerdict& verdict) {
          return verdict.stream == report.stream && verdict.committed > report.step;
        })) {
      committed_.insert(report.stream);
    }
  }
  return membership;
}

Unable ControlLine::unable() const {
  if (!elastic_ || last_ == Epoch(1)) {
    return Unable::kEndsJob;
  }
  return has_state_ ? Unable::kEndsEpoch : Unable::kEndsRank;
}

void ControlLine::admit(bool admits) {
  if (grows_) {
    admits_ = admits;
    has_state_ = has_state_ || admits;
    client_->report(control::encode(control::RosterReport(control::Admission{admits})));
  }
}

void ControlLine::leave_soon() {
  client_->report(control::encode(control::RosterReport(control::MustLeave{})));
}

std::uint32_t ControlLine::wanted() const {
  const std::uint32_t highest = wanted_;
  return highest > settled_ ? highest : 0;
}

void ControlLine::on_notice(ConstBytes bytes) {
  const auto notice = control::decode_roster_notice(bytes);
  if (const auto* change = notice ? std::get_if<control::ChangeWanted>(&*notice) : nullptr) {
    wanted_ = std::max<std::uint32_t>(wanted_, change->number);
  } else if (const auto* announced = notice ? std::get_if<control::Announced>(&*notice) : nullptr) {
    announced_ = announced->processes;
  }
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
