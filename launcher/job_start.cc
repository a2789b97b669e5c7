// First half of a Job: terminal, coordinator, agents, and the check that every host can reach this one.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ctime>

#include "launcher/agent/host_facts.h"
#include "launcher/check.h"
#include "launcher/job.h"
#include "launcher/process/ssh.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr int kProbeTimeoutMs = 4000;

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// Returns the local time to the millisecond: "14:03:07.250".
std::string time_of_day() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof(text), "%H:%M:%S", &local);
  const std::string fraction = std::to_string(1000 + ms);
  return std::string(text, size) + "." + fraction.substr(1);
}

}  // namespace

Status Job::open_output() {
  OutputOptions options;
  options.tags = plan_.options.tag_output;
  options.timestamps = plan_.options.timestamps;
  options.one_terminal = same_file(STDOUT_FILENO, STDERR_FILENO);
  options.colour = plan_.options.colour == "always" ||
                   (plan_.options.colour == "auto" && isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1);
  output_.writer =
      std::make_unique<OutputWriter>(OutputWriter::Events{[this] { asio::post(io_, [this] { return_credit(); }); },
                                                          [this] { asio::post(io_, [this] { interrupt(SIGPIPE); }); }});
  output_.mux = std::make_unique<OutputMux>(
      plan_.places, options,
      [this](OutputStream stream, std::string bytes) { output_.writer->write(stream, std::move(bytes)); }, time_of_day);
  if (!plan_.options.output_dir.empty() && !plan_.options.check) {
    SRT_ASSIGN(output_.files, RankFiles::create(plan_.options.output_dir, plan_.size, plan_.places));
  }
  return Status();
}

Status Job::start_hub() {
  SRT_ASSIGN(secret_, rendezvous::Secret::generate());
  const Config& config = *plan_.config;
  const bool one_host = !discovers() && std::all_of(plan_.placements.begin(), plan_.placements.end(),
                                                    [](const Placement& placement) { return placement.local; });
  // With an address from the user, ranks may run in other network namespaces, which loopback does not reach.
  const bool loopback = one_host && plan_.options.rendezvous_address.empty();
  hub::CoordinatorServerOptions options = hub::coordinator_options(config);
  options.elastic_min = plan_.options.check ? 0 : options.elastic_min;
  growth_.restarts = Restarts(config.elastic.restarts);
  options.server.bind_address = loopback ? "127.0.0.1" : "::";
  options.server.port_first = config.job.port_range.first;
  options.server.port_last = config.job.port_range.last;
  options.server.secret = secret_;
  options.server.size = discovers() ? plan_.most_ranks() : plan_.size;
  options.spares = plan_.spares;
  options.refills = discovers();
  options.gives_up_unconnected = !plan_.by_host;  // it would take its whole host along, however few were left
  options.server.exit_report_wait = rendezvous::kExitReportWait;
  options.coordinator.joined_only_reduce = plan_.options.horovod;
  hub::CoordinatorServerEvents events;
  events.on_epoch = [this](const rendezvous::Membership& /*membership*/) { asio::post(io_, [this] { on_epoch(); }); };
  events.on_left = [this](Rank rank) { asio::post(io_, [this, rank] { on_rank_left(rank); }); };
  events.on_lost = [this](Rank rank, const Status& cause) {
    asio::post(io_, [this, rank, cause] { on_rank_lost(rank, cause); });
  };
  events.on_survived = [this](const hub::Survived& loss) { asio::post(io_, [this, loss] { on_survived(loss); }); };
  events.on_new_rank = [this](const hub::NewRank& rank) { asio::post(io_, [this, rank] { on_new_rank(rank); }); };
  events.on_admits = [this](bool admits) { asio::post(io_, [this, admits] { on_admits(admits); }); };
  events.on_over = [this](const Status& why) { asio::post(io_, [this, why] { on_over(why); }); };
  // Until ranks are started only agents come, to see whether they reach this port, and prove nothing.
  events.on_warning = [this](const std::string& text) {
    asio::post(io_, [this, text] { phase_ < Phase::kRunning ? log_verbose(text) : log(text); });
  };
  auto server = hub::CoordinatorServer::start(std::move(options), std::move(events));
  if (!server) {
    return server.status().with_context("the coordinator cannot listen");
  }
  coordinator_ = std::move(*server);
  return Status();
}

AgentCommand Job::agent_command(const Placement& placement) const {
  AgentCommand command;
  command.env = plan_.own_env;
  command.open_files = open_files_;
  if (placement.local) {
    command.remote_path = plan_.own_path;
    command.argv = {plan_.own_path, "--agent"};
    return command;
  }
  command.remote_path = plan_.options.remote_path.empty() ? plan_.own_path : plan_.options.remote_path;
  SshOptions ssh = plan_.options.ssh;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(plan_.options.start_timeout).count();
  ssh.connect_timeout_s = static_cast<int>(std::clamp<std::int64_t>(seconds - 1, 1, ssh.connect_timeout_s));
  command.argv = ssh_command(ssh, placement.host, command.remote_path);
  return command;
}

AgentLink::Events Job::link_events() {
  AgentLink::Events events;
  events.on_ready = [this](AgentLink& link) { on_link_ready(link); };
  events.on_failed = [this](AgentLink& link, const Status& status) { on_link_failed(link, status); };
  events.on_frame = [this](AgentLink& link, const Frame& frame) { on_frame(link, frame); };
  events.on_gone = [this](AgentLink& link, const Status& status) { on_link_gone(link, status); };
  events.on_message = [this](AgentLink& link, const std::string& line) { log(link.placement().host + ": " + line); };
  return events;
}

AgentLink& Job::add_link(const Placement& placement) {
  links_.push_back(std::make_shared<AgentLink>(io_, placement, link_events()));
  return *links_.back();
}

void Job::start_links() {
  for (const Placement& placement : plan_.placements) {
    AgentLink& link = add_link(placement);
    for (Rank rank = placement.first_rank; rank < placement.first_rank + placement.ranks; ++rank) {
      seat(rank, link);
    }
  }
  for (const auto& link : links_) {
    link->start(agent_command(link->placement()));
  }
  phase_timer_.expires_after(plan_.options.start_timeout);
  phase_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      on_start_timeout();
    }
  });
}

void Job::on_link_ready(AgentLink& link) {
  log_verbose(link.placement().host + ": agent ready (" + link.hello().hostname + ", " +
              std::to_string(link.hello().cores) + " cores, version " + link.hello().version + ")");
  discovers() ? on_discovered_ready(link) : check_started();
}

void Job::on_link_failed(AgentLink& link, const Status& status) {
  if (discovers() && phase_ < Phase::kStopping) {
    return is_newest(link) ? leave_out(link.placement().host, status) : void();
  }
  link.notes.start_error = status.text();
  if (phase_ == Phase::kStarting) {
    check_started();
  } else {
    check_links_ended();
  }
}

void Job::check_started() {
  const bool waiting = std::any_of(links_.begin(), links_.end(),
                                   [](const auto& link) { return link->state() == AgentLink::State::kStarting; });
  if (waiting || phase_ != Phase::kStarting) {
    return;
  }
  const bool failed = std::ranges::any_of(links_, [](const auto& link) { return !link->notes.start_error.empty(); });
  if (failed) {
    give_up_start();
  } else {
    start_probing();
  }
}

std::vector<std::string> Job::candidates(const AgentLink& link) const {
  std::vector<std::string> addresses = {plan_.options.rendezvous_address};
  if (addresses.front().empty()) {
    // The address that the host saw is right unless a jump host or a NAT lies between; the routing table, or the
    // address that a joining host has reached, is the second guess.
    const std::string& host = link.placement().host;
    const auto route = growth_.routes.find(host);
    const std::string known = route == growth_.routes.end() ? address_towards(host) : route->second;
    addresses = {link.hello().launcher_address, known == kRouteHere ? "" : known};
    if (const std::string used = link.joined() && phase_ == Phase::kRunning ? endpoint_in_use() : ""; !used.empty()) {
      return {used};  // it has to reach the ranks here, too
    }
  }
  std::vector<std::string> endpoints;
  for (const std::string& address : addresses) {
    const std::string endpoint = address.empty() ? "" : make_endpoint(address, coordinator_->port());
    if (!endpoint.empty() && std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end()) {
      endpoints.push_back(endpoint);
    }
  }
  return endpoints;
}

void Job::start_probing() {
  phase_ = Phase::kProbing;
  for (const auto& link : links_) {
    if (!link->placement().local) {
      send_probe(*link);
    }
  }
  check_probed();
}

void Job::send_probe(AgentLink& link) {
  link.send(FrameType::kProbe, encode(Probe{candidates(link), kProbeTimeoutMs}));
}

void Job::on_probed(AgentLink& link, ConstBytes payload) {
  const Result<Probed> result = decode_probed(payload);
  if (!result || (phase_ != Phase::kProbing && !discovers())) {
    protocol_error(link, result.status());
    return;
  }
  const std::vector<std::string> tried = candidates(link);
  if (result->reached >= 0 && static_cast<std::size_t>(result->reached) < tried.size()) {
    link.notes.endpoint = is_here(link) ? endpoint_here(link) : tried[static_cast<std::size_t>(result->reached)];
  } else {
    std::string errors;
    for (const std::string& error : result->errors) {
      errors += (errors.empty() ? "" : "; ") + error;
    }
    link.notes.start_error = "host " + link.placement().host + " cannot connect to the coordinator here (" + errors +
                             "); open the port in the firewall (--port-range chooses it) or name " +
                             "an address that works with --rendezvous-address";
  }
  if (!discovers()) {
    return check_probed();
  }
  const std::string error = std::exchange(link.notes.start_error, {});
  error.empty() ? use_host(link) : link.give_up(unavailable(error));
}

void Job::check_probed() {
  const std::string& address = plan_.options.rendezvous_address;
  std::string shared = make_endpoint(address.empty() ? "127.0.0.1" : address, coordinator_->port());
  bool failed = false;
  for (std::size_t i = links_.size(); i-- > 0;) {
    if (links_[i]->placement().local) {
      continue;
    }
    if (links_[i]->notes.endpoint.empty() && links_[i]->notes.start_error.empty()) {
      return;
    }
    failed = failed || !links_[i]->notes.start_error.empty();
    shared = links_[i]->notes.endpoint;
  }
  if (failed) {
    give_up_start();
    return;
  }
  // Ranks on the launcher's host use the same address as the others: it shows them the network of the job.
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i]->placement().local) {
      links_[i]->notes.endpoint = shared;
    }
  }
  if (plan_.options.check) {
    finish_check();
  } else {
    spawn_ranks();
  }
}

std::vector<std::string> Job::command() const {
  if (!plan_.options.check) {
    return plan_.options.command;
  }
  // The agent starts the ranks, so its own program is the right one on every host.
  std::vector<std::string> command = {"/proc/self/exe", kMeasureLinks};
  for (const Placement& host : plan_.placements) {
    command.push_back(host.host);
  }
  return command;
}

void Job::spawn_ranks() {
  phase_timer_.cancel();
  phase_ = Phase::kRunning;
  seat_ranks();
  for (const auto& link : links_) {
    if (const std::vector<Rank> ranks = ranks_of(*link); !ranks.empty()) {
      send_spawn(*link, ranks);
    }
  }
  update_places();
}

void Job::send_spawn(AgentLink& link, const std::vector<Rank>& ranks) {
  const Placement& placement = link.placement();
  Spawn request;
  request.ranks = ranks;
  // A script may have changed the slots of the host since its agent was started.
  const int slots = std::max(growth_.fleet.slots(placement.host), static_cast<int>(ranks_of(link).size()));
  // Spares take no part of the cores.
  const int most = std::min(slots - placement.spare_slots, plan_.most_ranks());
  request.most_ranks = grows() ? std::max(most, 1) : placement.ranks;
  request.rendezvous = link.notes.endpoint;
  request.secret_hex = secret_.to_hex();
  request.cwd = plan_.cwd;
  request.argv = command();
  request.env = plan_.variables;
  if (isatty(STDERR_FILENO) == 1) {
    request.env.emplace_back(kTerminalVariable, "1");
  }
  for (const Rank rank : ranks) {
    if (plan_.by_host) {
      coordinator_->set_host(rank, placement.host);
    }
    // A program finds its rank below its size, also if it comes later.
    const int size = rank < plan_.size ? plan_.size : rank < plan_.most_ranks() ? plan_.most_ranks() : plan_.places;
    const RankNumbers& numbers = ranks_.at(static_cast<std::size_t>(rank)).numbers;
    request.rank_env.push_back(variables_of_rank(rank, size, numbers, placement.host, plan_.options.horovod));
  }
  const auto grace = std::chrono::duration_cast<std::chrono::milliseconds>(plan_.options.term_grace);
  request.term_grace_ms = static_cast<std::int32_t>(grace.count());
  log_verbose(placement.host + ": starting " + std::to_string(ranks.size()) + " from rank " +
              std::to_string(ranks.front()) + ", coordinator at " + request.rendezvous);
  link.send(FrameType::kSpawn, encode(request));
}

std::string Job::no_answer_text(const AgentLink& link) const {
  const std::string& host = link.placement().host;
  const std::string silence = "host " + host + ": no answer within " + format_duration(plan_.options.start_timeout);
  if (link.joined()) {
    return silence + " of its connection (--start-timeout of the launcher); check that it is up";
  }
  return silence + "; check that it is up and that 'ssh " + host +
         " true' works, or give it more time with --start-timeout";
}

void Job::on_start_timeout() {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const bool silent =
        links_[i]->state() == AgentLink::State::kStarting ||
        (phase_ == Phase::kProbing && links_[i]->notes.endpoint.empty() && !links_[i]->placement().local);
    if (silent && links_[i]->notes.start_error.empty()) {
      links_[i]->notes.start_error = no_answer_text(*links_[i]);
    }
  }
  give_up_start();
}

void Job::give_up_start() {
  if (plan_.options.check) {
    finish_check();
    return;
  }
  for (const auto& link : links_) {
    if (!link->notes.start_error.empty()) {
      log(link->notes.start_error);
    }
  }
  log("nothing was started");
  exit_code_ = 1;
  finish();
}

void Job::finish_check() {
  std::vector<CheckedHost> hosts;
  std::size_t failed = 0;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    hosts.push_back({plan_.wanted[i], links_[i]->hello(), links_[i]->notes.endpoint, links_[i]->notes.start_error});
    failed += links_[i]->notes.start_error.empty() ? 0 : 1;
  }
  output_.writer->write(OutputStream::kStdout, check_page(hosts, *plan_.config, plan_.options.verbose));
  if (failed == 0 && hosts.size() > 1) {
    spawn_ranks();
    return;
  }
  exit_code_ = failed == 0 ? 0 : 1;
  output_.writer->write(OutputStream::kStdout, check_verdict(failed, hosts.size()));
  finish();
}

}  // namespace sirtaki::launcher
