// Elastic jobs whose hosts come and go: agents are started as a script names hosts, and ranks leave as hosts go.
#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/agent/host_facts.h"
#include "launcher/job.h"
#include "launcher/process/processes.h"
#include "runtime/base/config/option_value.h"
#include "runtime/base/host_info.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Pauses between attempts to use a host that does not answer.
constexpr Duration kFirstRest = std::chrono::seconds(5);
constexpr Duration kLongestRest = std::chrono::minutes(5);

// An address of no machine (RFC 5737), which tells the default route.
constexpr const char* kElsewhere = "192.0.2.1";

}  // namespace

// Starts the script, or calls the hosts of the command line. The ranks start when there are hosts with enough slots,
// and these have answered.
void Job::discover() {
  await_hosts();
  if (plan_.options.join.hub) {
    log("waiting for hosts with " + std::to_string(plan_.size) + (plan_.size == 1 ? " slot" : " slots") + ", for " +
        format_duration(plan_.config->elastic.timeout) + " at most (elastic.timeout)");
  }
  if (plan_.join_secret) {
    offer_hosts();
    return call_absent_hosts();
  }
  Discovery::Events events;
  events.on_hosts = [this](const std::vector<Host>& hosts) { on_hosts(hosts); };
  events.on_failed = [this](const Status& status) { on_discovery_failed(status); };
  growth_.script = std::make_unique<Discovery>(io_, plan_.options.discovery, plan_.own_env, std::move(events));
  growth_.script->start();
}

void Job::await_hosts() {
  phase_timer_.expires_after(plan_.config->elastic.timeout);
  phase_timer_.async_wait([this](const error_code& error) {
    if (!error && phase_ == Phase::kStarting) {
      const std::string text = "too few hosts within " + format_duration(plan_.config->elastic.timeout) +
                               " (elastic.timeout): " + (growth_.script ? "the script names " : "") +
                               growth_.fleet.describe() + ", of which " + std::to_string(growth_.fleet.ready_slots()) +
                               " can be used, and the job starts with " + std::to_string(plan_.size) +
                               " ranks at least (-np)";
      log(text);
      log("nothing was started");
      for (const auto& link : links_) {
        if (link->state() == AgentLink::State::kReady) {
          link->tell(text);
        }
      }
      exit_code_ = 1;
      finish();
    }
  });
}

void Job::on_hosts(const std::vector<Host>& hosts) {
  if (hosts.empty() && phase_ == Phase::kRunning) {
    return on_discovery_failed(invalid_argument("it names no host"));
  }
  growth_.answered = true;
  growth_.script_error.clear();
  growth_.fleet.offer(hosts);
  if (phase_ == Phase::kRunning) {
    return update_places();
  }
  call_absent_hosts();
  start_if_enough();
}

void Job::on_discovery_failed(const Status& status) {
  if (std::exchange(growth_.script_error, status.text()) == status.text()) {
    return;
  }
  log("the host discovery script has failed: " + std::string(status.text()) +
      (growth_.answered ? "; the hosts stay as they are" : ""));
  if (!growth_.answered) {
    log("nothing was started");
    exit_code_ = 1;
    finish();
  }
}

// Starts agents on hosts that are needed. They answer on_discovered_ready() or leave_out().
void Job::call_absent_hosts() {
  for (const Host& host : growth_.fleet.absent(seats(), std::chrono::steady_clock::now())) {
    growth_.fleet.set_pending(host.name);
    look_up(host);
  }
}

// Resolves the name of a host in a child, because that may take long. The host itself is called then.
void Job::look_up(const Host& host) {
  SpawnSpec spec;
  spec.argv = {plan_.own_path, kRouteTo, host.name};
  spec.env = plan_.own_env;
  std::unique_ptr<ChildOutput>& child = growth_.lookups[host.name];
  child = std::make_unique<ChildOutput>(io_);
  const Status started =
      child->start(std::move(spec), plan_.options.start_timeout, [this, host](const ChildOutput::End& end) {
        const std::string route = end.texts[0].substr(0, end.texts[0].find('\n'));
        growth_.lookups.erase(host.name);
        if (end.wait_status != 0) {
          const std::string within = " was not resolved within " + format_duration(plan_.options.start_timeout);
          const std::string failed = " cannot be resolved: " + describe_wait_status(end.wait_status);
          return leave_out(host.name, unavailable("host " + host.name + ": its name" + (end.late ? within : failed)));
        }
        growth_.routes[host.name] = route;
        call({host.name, route == kRouteHere, 0, 0, host.slots});
      });
  if (!started.ok()) {
    growth_.lookups.erase(host.name);
    asio::post(io_, [this, host, started] { leave_out(host.name, started.with_context("host " + host.name)); });
  }
}

// Starts the agent of a host.
void Job::call(const Placement& placement) {
  AgentLink& link = add_link(placement);
  link.start(agent_command(placement));
  await_answer(link);
}

// Gives an agent up that does not answer.
void Job::await_answer(AgentLink& link) {
  auto timer = std::make_shared<boost::asio::steady_timer>(io_, plan_.options.start_timeout);
  timer->async_wait([this, timer, waits = link.weak_from_this()](const error_code& error) {
    const auto silent = waits.lock();  // null: it has ended long ago
    if (!error && silent && silent->notes.endpoint.empty() && !silent->ended()) {
      silent->give_up(unavailable(no_answer_text(*silent)));
    }
  });
}

void Job::on_discovered_ready(AgentLink& link) {
  if (!link.placement().local) {
    return send_probe(link);
  }
  link.notes.endpoint = endpoint_here(link);
  use_host(link);
}

// Returns the endpoint of the coordinator for ranks on this machine: that of another host, if there is one, because it
// shows them the network that they share.
std::string Job::endpoint_here(const AgentLink& link) const {
  std::string address = plan_.options.rendezvous_address;
  if (!address.empty()) {
    return make_endpoint(address, coordinator_->port());
  }
  for (const auto& other : links_) {
    const std::string& endpoint = other->notes.endpoint;
    if (!is_here(*other) && !other->ended() && !endpoint.empty()) {
      return endpoint;
    }
  }
  for (const auto& [host, route] : growth_.routes) {
    if (growth_.fleet.is_offered(host) && !route.empty() && route != kRouteHere) {
      return make_endpoint(route, coordinator_->port());
    }
  }
  if (!is_loopback_name(link.placement().host)) {
    const auto& own = link.hello().addresses;
    address = plan_.join_secret ? address_towards(kElsewhere) : "";
    address = address.empty() && !own.empty() ? own.front().address : address;
  }
  return make_endpoint(address.empty() ? "127.0.0.1" : address, coordinator_->port());
}

// An address would not do: a tunnel makes other machines come from this one.
bool Job::is_here(const AgentLink& link) const {
  return link.placement().local || (link.joined() && link.hello().host_id == host_info().host_id);
}

// Returns the endpoint through which ranks on this machine meet the coordinator, on the network of their data; empty if
// there are none, or on loopback.
std::string Job::endpoint_in_use() const {
  for (const auto& link : links_) {
    const std::string& endpoint = link->notes.endpoint;
    if (is_here(*link) && !ranks_of(*link).empty() && !endpoint.starts_with("127.")) {
      return endpoint;
    }
  }
  return {};
}

// The address through which the first ranks meet the coordinator shows them the network of their data.
bool Job::is_on_loopback() const {
  return std::ranges::any_of(links_, [this](const auto& link) {
    return is_here(*link) && !link->ended() && link->notes.endpoint.starts_with("127.") &&
           plan_.options.rendezvous_address.empty();
  });
}

void Job::use_host(AgentLink& link) {
  const std::string& host = link.placement().host;
  if (!is_newest(link)) {
    return link.finish();
  }
  if (!growth_.fleet.is_offered(host)) {  // the script does not name it any more
    growth_.fleet.set_ready(host, false);
    return link.finish();
  }
  if (link.joined() && (growth_.over || phase_ >= Phase::kStopping)) {
    return link.give_up(unavailable("the job is about to end"));
  }
  if (!is_here(link) && is_on_loopback()) {
    const std::string name = growth_.script ? "let the script name this machine" : "start the job with this machine";
    return link.give_up(invalid_argument("host " + host + " cannot reach the ranks on localhost; " + name +
                                         " by its host name, or give --rendezvous-address"));
  }
  log_verbose("host " + host + " can be used");
  growth_.fleet.set_ready(host, true);
  phase_ == Phase::kStarting ? start_if_enough() : update_places();
  if (link.joined()) {
    growth_.left_out.erase(host);
    greet(link);
  }
}

// Leaves a host out for a while; one that has joined, until it joins again.
void Job::leave_out(const std::string& host, const Status& why) {
  if (const AgentLink* link = link_of(host); link != nullptr && link->joined()) {
    if (!growth_.over && std::exchange(growth_.left_out[host], why.text()) != why.text()) {
      const std::string rest = phase_ == Phase::kStarting ? "; the job starts without" : "; the job goes on without";
      log(std::string(why.text()) + rest + " this host");
    }
    return withdraw(*link);
  }
  rest_host(host);
  if (std::exchange(growth_.left_out[host], why.text()) != why.text()) {
    log(std::string(why.text()) + "; the job goes on without this host until it answers");
  }
  if (phase_ == Phase::kStarting) {
    start_if_enough();
  }
}

void Job::rest_host(const std::string& host) {
  growth_.fleet.rest(host, kFirstRest, kLongestRest, std::chrono::steady_clock::now(), used(host));
  growth_.fleet.set_ready(host, false);
}

void Job::start_if_enough() {
  if (growth_.fleet.pending() || growth_.fleet.ready_slots() < plan_.size) {
    return;
  }
  plan_.size = std::min(growth_.fleet.ready_slots(), plan_.most_ranks());
  coordinator_->begin(plan_.size);
  for (const auto& [rank, host] : growth_.fleet.starts(seats(), std::chrono::steady_clock::now())) {
    if (rank < plan_.size) {
      seat(rank, *link_of(host));
    }
  }
  spawn_ranks();
}

// The host of a rank has no slot for it any more.
void Job::ask_to_leave(Rank rank) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  if (state.link->ended() && !state.settled) {
    return;  // a loss, of which the coordinator has yet to tell
  }
  if (std::exchange(state.asked, true)) {
    return;
  }
  if (state.closed) {
    return state.settled ? vacate(rank) : void();  // else the coordinator has yet to say that it is lost
  }
  const std::string& host = state.link->placement().host;
  const bool gone = !growth_.fleet.is_offered(host);
  log("rank " + std::to_string(rank) + " is asked to leave: " + host +
      (gone ? " is not among the hosts any more" : " has fewer slots"));
  coordinator_->set_host(rank, "");  // its end is no failure of the host
  // A process that has not joined yet has nothing to lose.
  const int signal_number = std::exchange(state.fresh, false) ? SIGKILL : SIGTERM;
  coordinator_->announce(rank, signal_number == SIGTERM);
  if (!std::exchange(state.noticed, signal_number == SIGTERM)) {  // a second SIGTERM would end it at once
    state.link->send(FrameType::kEndRank, encode(EndRank{rank, signal_number}));
  }
  set_timer(rank, plan_.options.term_grace, [this, rank] { end_late_leaver(rank); });
}

void Job::end_late_leaver(Rank rank) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  if (phase_ != Phase::kRunning || growth_.over || state.exited || state.link->ended()) {
    return;  // one that has come to the end of the program may write its results
  }
  const std::vector<Rank> leaves = growth_.fleet.leaves(seats());
  if (std::ranges::count(leaves, rank) == 0) {
    state.asked = false;
    const std::string& host = state.link->placement().host;
    log_verbose("rank " + std::to_string(rank) + " is not ended: " +
                (growth_.fleet.is_offered(host) ? host + " is there again" : "no other rank has the state"));
    if (plan_.by_host) {
      coordinator_->set_host(rank, host);
    }
    coordinator_->announce(rank, false);
    return;
  }
  log("rank " + std::to_string(rank) + " has not left within " + format_duration(plan_.options.term_grace) +
      " (--term-grace), and is ended");
  end_process(rank);
}

// Ends agents that have no ranks any more, and no hosts.
void Job::retire_hosts() {
  for (const auto& link : links_) {
    const std::string& host = link->placement().host;
    const bool runs = link->state() == AgentLink::State::kReady && !link->finishing();
    if (runs && !growth_.fleet.is_offered(host) && ranks_of(*link).empty()) {
      growth_.fleet.set_ready(host, false);
      growth_.left_out.erase(host);
      link->finish();
    }
  }
}

}  // namespace sirtaki::launcher
