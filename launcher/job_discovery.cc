// Elastic jobs whose hosts a script names: their agents are started as hosts come, and their ranks leave as hosts go.
#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/agent/host_facts.h"
#include "launcher/job.h"
#include "launcher/process/processes.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Pauses between attempts to use a host that does not answer.
constexpr Duration kFirstRest = std::chrono::seconds(5);
constexpr Duration kLongestRest = std::chrono::minutes(5);

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

// Starts the script. The ranks start when it has named hosts with enough slots, and these have answered.
void Job::discover() {
  Discovery::Events events;
  events.on_hosts = [this](const std::vector<Host>& hosts) { on_hosts(hosts); };
  events.on_failed = [this](const Status& status) { on_discovery_failed(status); };
  growth_.script = std::make_unique<Discovery>(io_, plan_.options.discovery, plan_.own_env, std::move(events));
  growth_.script->start();
  phase_timer_.expires_after(plan_.config->elastic.timeout);
  phase_timer_.async_wait([this](const error_code& error) {
    if (!error && phase_ == Phase::kStarting) {
      log("too few hosts within " + format_duration(plan_.config->elastic.timeout) +
          " (elastic.timeout): the script names " + growth_.fleet.describe() + ", of which " +
          std::to_string(growth_.fleet.ready_slots()) + " can be used, and the job starts with " +
          std::to_string(plan_.size) + " ranks at least (-np)");
      log("nothing was started");
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
  auto timer = std::make_shared<boost::asio::steady_timer>(io_, plan_.options.start_timeout);
  timer->async_wait([this, timer, &link](const error_code& error) {
    if (!error && endpoints_.at(index_of(link)).empty() && !link.ended()) {
      link.give_up(unavailable(no_answer_text(link)));
    }
  });
}

void Job::on_discovered_ready(AgentLink& link) {
  const Placement& placement = link.placement();
  if (!placement.local) {
    return send_probe(link);
  }
  endpoints_.at(index_of(link)) = endpoint_here(link);
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
    const std::string& endpoint = endpoints_.at(index_of(*other));
    if (!other->placement().local && !other->ended() && !endpoint.empty()) {
      return endpoint;
    }
  }
  for (const auto& [host, route] : growth_.routes) {
    if (growth_.fleet.is_offered(host) && !route.empty() && route != kRouteHere) {
      return make_endpoint(route, coordinator_->port());
    }
  }
  const auto& own = link.hello().addresses;
  address = is_loopback_name(link.placement().host) || own.empty() ? "127.0.0.1" : own.front().address;
  return make_endpoint(address, coordinator_->port());
}

// The address through which the first ranks meet the coordinator shows them the network of their data.
bool Job::is_on_loopback() const {
  return std::ranges::any_of(links_, [this](const auto& link) {
    return link->placement().local && !link->ended() && endpoints_.at(index_of(*link)).starts_with("127.") &&
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
  if (!link.placement().local && is_on_loopback()) {
    return link.give_up(invalid_argument("host " + host + " cannot reach the ranks on localhost; let the script name " +
                                         "this machine by its host name, or give --rendezvous-address"));
  }
  log_verbose("host " + host + " can be used");
  growth_.fleet.set_ready(host, true);
  phase_ == Phase::kStarting ? start_if_enough() : update_places();
}

// Leaves a host out for a while.
void Job::leave_out(const std::string& host, const Status& why) {
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
  plan_.size = std::min(growth_.fleet.ready_slots(), plan_.places);
  coordinator_->begin(plan_.size);
  for (const auto& [rank, host] : growth_.fleet.starts(seats(), std::chrono::steady_clock::now())) {
    seat(rank, *link_of(host));
  }
  spawn_ranks();
}

// The host of a rank has no slot for it any more.
void Job::ask_to_leave(Rank rank) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
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
    log_verbose("rank " + std::to_string(rank) + " is not ended: " + state.link->placement().host + " is there again");
    if (plan_.by_host) {
      coordinator_->set_host(rank, state.link->placement().host);
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
