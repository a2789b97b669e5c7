#include "runtime/engine/device/device_sets.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/net/device/nccl/loader.h"

namespace sirtaki::engine {
namespace {

// Returns, for example, "0, 2".
std::string listed(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

std::string reason_of(const net::SetOutcome::Refusal& refusal) {
  const std::string who = "rank " + std::to_string(refusal.rank);
  return refusal.unordered      ? who + " orders no operations of process sets any more"
         : refusal.connecting   ? who + " could not connect"
         : refusal.version == 0 ? who + " cannot use NCCL; its log says why"
                                : who + " has NCCL " + net::nccl::version_text(refusal.version) + ", another one not";
}

}  // namespace

void DeviceSets::when_decided(const std::vector<Rank>& ranks, MoveFunction<void(Answer)> then) {
  SRT_IN_LOOP(deps_.loop);
  Set& set = sets_[ranks];
  if (set.state == State::kUndecided && !ended_.ok()) {
    decide(set, State::kEnded, ended_);
  }
  if (set.state != State::kUndecided && set.state != State::kAsking) {
    answer(set, std::move(then));
    return;
  }
  set.waiters.push_back(std::move(then));
  if (std::exchange(set.state, State::kAsking) == State::kUndecided) {
    ask(ranks, set);
  }
}

void DeviceSets::answer(const Set& set, MoveFunction<void(Answer)> then) {
  if (set.state != State::kEnded) {
    then(set.device);
    return;
  }
  deps_.loop.post([then = std::move(then), why = set.why]() mutable { then(why); });
}

void DeviceSets::ask(const std::vector<Rank>& ranks, Set& set) {
  const Nccl nccl = deps_.open();
  set.host = deps_.net.part(ranks);
  SRT_CHECK(set.host);  // NamedOps refuses operations of sets where the backend has none
  const bool able = nccl.status.ok();
  const auto add = [&set, collectives = nccl.collectives, name = "ranks " + listed(ranks)](net::LaunchSet number) {
    set.ids = std::make_unique<NcclIds>(*set.host, device_set_tag(number));
    collectives->add_set(number, name, {set.host->rank(), set.host->size()}, *set.ids);
  };
  nccl.ordered->open_set(ranks, able ? nccl.version : 0, add,
                         [weak = std::weak_ptr(self_), ranks](const net::SetOutcome& outcome) {
                           if (const auto self = weak.lock()) {
                             (*self)->on_outcome(ranks, outcome);
                           }
                         });
  if (!able) {
    // Needs no other rank: rank 0 brings those that are able to host memory, too.
    use_host(ranks, std::string(nccl.status.text()), deps_.net.rank());
  }
}

void DeviceSets::on_outcome(const std::vector<Rank>& ranks, const net::SetOutcome& outcome) {
  Set& set = sets_.at(ranks);
  if (set.state != State::kAsking) {
    return;
  }
  if (outcome.device != nullptr) {
    set.device = outcome.device;
    deps_.log.info("GPU tensors of the process set of ranks " + listed(ranks) + " use NCCL");
    decide(set, State::kNccl, {});
  } else if (outcome.refused && outcome.refused->unordered && deps_.demanded) {
    const Rank gone = outcome.refused->rank;
    decide(set, State::kEnded,
           Status(Code::kPeerLost, reason_of(*outcome.refused), {gone, ""}).with_context("device.data = nccl"));
  } else if (outcome.refused) {
    use_host(ranks, reason_of(*outcome.refused), outcome.refused->rank);
  } else {
    decide(set, State::kEnded, outcome.ended);
  }
}

void DeviceSets::use_host(const std::vector<Rank>& ranks, const std::string& why, Rank rank) {
  Set& set = sets_.at(ranks);
  if (deps_.demanded) {
    decide(set, State::kEnded, Status(Code::kUnavailable, why, {rank, ""}).with_context("device.data = nccl"));
    return;
  }
  deps_.log.write(deps_.net.rank() == ranks.front() || deps_.net.rank() == rank ? LogLevel::kWarn : LogLevel::kInfo,
                  "GPU tensors of the process set of ranks " + listed(ranks) +
                      " are staged through host memory, not sent over NCCL: " + why);
  decide(set, State::kHost, {});
}

void DeviceSets::decide(Set& set, State state, const Status& why) {
  set.state = state;
  set.why = why;
  if (state != State::kNccl && set.host) {
    // The exchange of an id may wait for a rank that never comes.
    set.host->abort({Code::kAborted, "the process set does not use NCCL"});
  }
  for (auto& then : std::exchange(set.waiters, {})) {
    answer(set, std::move(then));
  }
}

bool DeviceSets::host_only(const std::vector<Rank>& ranks) const {
  const auto place = sets_.find(ranks);
  return place != sets_.end() && place->second.state == State::kHost;
}

bool DeviceSets::use_nccl() const {
  return std::ranges::any_of(sets_, [](const auto& set) { return set.second.state == State::kNccl; });
}

void DeviceSets::abort(const Status& cause) {
  ended_.update(cause);
  for (auto& [ranks, set] : sets_) {
    if (set.host) {
      set.host->abort(cause);
    }
    if (set.state == State::kAsking) {
      decide(set, State::kEnded, cause);
    }
  }
}

}  // namespace sirtaki::engine
