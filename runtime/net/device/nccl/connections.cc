#include "runtime/net/device/nccl/connections.h"

#include <algorithm>
#include <utility>

namespace sirtaki::net::nccl {

void Connections::reply(Done done, Status status) {
  loop_.post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

void Connections::add(LaunchSet set, const std::string& name, const Place& place, IdExchange* ids) {
  Member& member = members_[set];
  member.place = place;
  if (ids != nullptr) {
    CommunicatorOptions options = options_;
    options.name = name;
    options.rank = place.rank;
    options.size = place.size;
    member.communicator = make_(options, *ids);
  }
}

void Connections::open(LaunchSet set) {
  Member& member = members_.at(set);
  if (!member.shut) {
    member.closed = {};
  }
}

void Connections::connect(std::vector<LaunchSet> sets, Done done) {
  std::ranges::reverse(sets);
  connect_next(std::move(sets), std::move(done));
}

// `sets` are those that are left, the next one at the end.
void Connections::connect_next(std::vector<LaunchSet> sets, Done done) {
  if (sets.empty()) {
    reply(std::move(done), {});
    return;
  }
  const Member& member = members_.at(sets.back());
  sets.pop_back();
  if (member.shut) {
    reply(std::move(done), member.closed);
  } else if (member.communicator == nullptr) {
    connect_next(std::move(sets), std::move(done));
  } else {
    member.communicator->connect([weak = std::weak_ptr(self_), aborts = aborts_, sets = std::move(sets),
                                  done = std::move(done)](const Status& status) mutable {
      const auto self = weak.lock();
      if (!self || (*self)->aborts_ != aborts) {
        return;
      }
      if (status.ok()) {
        (*self)->connect_next(std::move(sets), std::move(done));
      } else {
        done(status);
      }
    });
  }
}

void Connections::shut(LaunchSet set, const Status& cause) {
  Member& member = members_.at(set);
  if (std::exchange(member.shut, true)) {
    return;
  }
  member.closed = cause;
  const auto state = member.communicator ? member.communicator->state() : Communicator::State::kClosed;
  if (state == Communicator::State::kExchanging || state == Communicator::State::kConnecting) {
    member.communicator->abort(cause);
  }
}

void Connections::drop_shut(const std::function<bool(LaunchSet set)>& unused) {
  for (const auto& [set, member] : members_) {
    const bool connected = member.communicator && member.communicator->state() != Communicator::State::kClosed;
    if (connected && member.shut && unused(set)) {
      member.communicator->abort(member.closed);
    }
  }
}

// All at once: NCCL waits for the stream, where one communicator may be behind another.
void Connections::abort(const Status& cause) {
  ++aborts_;
  for (const auto& [set, member] : members_) {
    if (member.communicator && member.communicator->state() != Communicator::State::kClosed) {
      member.communicator->abort(cause);
    }
  }
}

void Connections::close(Done done) {
  std::vector<Communicator*> all;
  for (const auto& [set, member] : members_) {
    if (member.communicator) {
      all.push_back(member.communicator.get());
    }
  }
  if (all.empty()) {
    reply(std::move(done), {});
    return;
  }
  const auto left = std::make_shared<std::size_t>(all.size());
  const auto last = std::make_shared<Done>(std::move(done));
  for (Communicator* const communicator : all) {
    communicator->close([left, last](const Status& closed) {
      if (--*left == 0) {
        (*last)(closed);
      }
    });
  }
}

Status Connections::check(LaunchSet set) const {
  const Member& member = members_.at(set);
  return member.communicator && member.closed.ok() ? member.communicator->check() : Status();
}

}  // namespace sirtaki::net::nccl
