// Hosts that join an elastic job by themselves, from the port of the launcher to their end.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <utility>

#include "launcher/agent/host_facts.h"
#include "launcher/job.h"
#include "launcher/join/join_secret.h"
#include "runtime/base/host_info.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;

namespace {

// Hosts that may wait as spares, beyond those that may fill a vacant place.
constexpr std::ptrdiff_t kMostSpares = 64;

}  // namespace

// Listens for hosts that join by themselves.
Status Job::open_join_port() {
  if (!plan_.join_secret) {
    return {};
  }
  JoinPort::Events events;
  events.on_host = [this](const std::shared_ptr<JoiningHost>& host) {
    asio::post(io_, [this, host] { on_joining(*host); });
  };
  events.on_warning = [this](const std::string& text) {
    asio::post(io_, [this, text] { log("at the port for hosts that join: " + text); });
  };
  const JoinOptions& join = plan_.options.join;
  SRT_ASSIGN(growth_.port,
             JoinPort::open(static_cast<std::uint16_t>(*join.port), *plan_.join_secret, std::move(events)));
  const std::string& address = plan_.options.rendezvous_address;
  const std::string endpoint = make_endpoint(address.empty() ? host_info().hostname : address, growth_.port->port());
  log("hosts may join: " + (join.secret_file.empty() ? std::string(kJoinSecretVariable) + "=... " : "") +
      "sirtakirun --join " + endpoint + (join.secret_file.empty() ? "" : " --secret-file " + join.secret_file) +
      " [-np SLOTS]");
  return {};
}

void Job::offer_hosts() {
  std::vector<Host> hosts = plan_.hosts;
  for (const auto& [name, slots] : growth_.joined) {
    hosts.push_back({name, slots});
  }
  growth_.fleet.offer(hosts);
}

// A host has proved the secret. It is used like one that a script names.
void Job::on_joining(JoiningHost& host) {
  const std::string name = free_host_name(host.offer.name, [this](const std::string& taken) {
    const AgentLink* link = link_of(taken);
    return (link != nullptr && !link->ended()) || std::ranges::count(plan_.hosts, taken, &Host::name) != 0;
  });
  growth_.routes[name] = host.peer == host.here || is_loopback_name(host.here) ? kRouteHere : host.here;
  AgentLink& link = add_link({name, false, 0, 0, host.offer.slots});
  link.adopt(std::move(host.ends));
  if (const std::string why = why_refused(link); !why.empty()) {
    return link.give_up(unavailable(why));
  }
  growth_.joined[name] = host.offer.slots;
  offer_hosts();
  growth_.fleet.set_pending(name);
  await_answer(link);
}

// Returns why a host may not join; empty if it may.
std::string Job::why_refused(const AgentLink& link) const {
  if (phase_ >= Phase::kStopping || growth_.over) {
    return "the job is about to end";
  }
  const std::string& name = link.placement().host;
  if (const std::string why = growth_.fleet.refusal(name, std::chrono::steady_clock::now()); !why.empty()) {
    return "host " + name + " " + why;
  }
  const auto vacant =
      std::ranges::count_if(ranks_, [](const RankState& rank) { return rank.vacant && !rank.given_up; });
  const auto spares = std::ranges::count_if(
      growth_.joined, [this](const auto& joined) { return ranks_of(*link_of(joined.first)).empty(); });
  if (spares >= vacant + kMostSpares) {
    return "host " + name + " is refused: " + std::to_string(spares) +
           " hosts that have joined wait for a place already; join when others have left";
  }
  return {};
}

// Tells how a host that has joined is used.
void Job::greet(AgentLink& link) {
  const Placement& placement = link.placement();
  const int used = static_cast<int>(ranks_of(link).size());
  std::string text = " the job with " + std::to_string(placement.slots) + (placement.slots == 1 ? " slot" : " slots");
  if (phase_ == Phase::kStarting) {
    text += ", which waits for more hosts";
  } else if (used < placement.slots) {
    const int unused = placement.slots - used;
    text += ", of which " + std::to_string(unused) + (unused == 1 ? " is" : " are") + " not used: all places for " +
            std::to_string(plan_.most_ranks()) + " ranks are taken (elastic.max)";
  }
  if (used > 0 && !growth_.admits && growth_.begun) {
    text += "; its ranks start while the others are in elastic.run()";
  }
  log("host " + placement.host + " has joined" + text);
  link.tell("this host has joined" + text + ", as " + placement.host);
}

// The job does not use a host that has joined any more. Its start may have waited for this one alone.
void Job::withdraw(const AgentLink& link) {
  const std::string& host = link.placement().host;
  if (is_newest(link) && growth_.joined.erase(host) != 0) {
    offer_hosts();
    growth_.fleet.set_ready(host, false);
    if (phase_ == Phase::kStarting) {
      start_if_enough();
    }
  }
}

// The user of a host that has joined wants it back.
void Job::on_leave(AgentLink& link) {
  if (!link.joined()) {
    return protocol_error(link, corrupt("a wish to leave"));
  }
  if (!is_newest(link) || !growth_.joined.contains(link.placement().host)) {
    return;  // it is about to end in any case
  }
  log("host " + link.placement().host + " leaves the job");
  withdraw(link);
  update_places();
  retire_hosts();
  for (const Rank rank : ranks_of(link)) {
    const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (growth_.begun && phase_ == Phase::kRunning && !growth_.over && !state.asked && !state.lost && !state.exited) {
      const std::string text =
          "rank " + std::to_string(rank) + " stays until a rank on another host has the state of the training";
      log(text);
      link.tell(text);
    }
  }
}

// Tells the hosts that have joined how the job has ended.
void Job::tell_end() {
  if (!plan_.join_secret) {
    return;
  }
  judge_elastic_run();
  const std::string text = verdict_.failure       ? "the job has failed: " + failure_line(*verdict_.failure)
                           : verdict_.interrupted ? "the job was interrupted"
                           : exit_code_ == 0      ? "the job has ended"
                                                  : "the job has ended with exit code " + std::to_string(exit_code_);
  for (const auto& link : links_) {
    // One whose hello is still to come would take the end of its connection for the loss of the launcher.
    if (!link->ended()) {
      link->tell(text, exit_code_);
    }
  }
}

}  // namespace sirtaki::launcher
