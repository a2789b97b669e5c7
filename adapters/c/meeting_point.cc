#include "adapters/c/meeting_point.h"

#include <unistd.h>

#include <utility>

#include "adapters/c/same_host_meeting.h"
#include "runtime/base/config/option_value.h"
#include "runtime/base/telemetry/log.h"

namespace sirtaki::adapters {
namespace {

constexpr const char* kSecretFix =
    "write one with mode 0600 where every host can read it, (umask 077; openssl rand -hex 32 > ~/.sirtaki_secret), and "
    "set SIRTAKI_JOB_SECRET_FILE to its path; or start the job with sirtakirun";

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Returns true if loopback reaches every rank. Ranks of sirtakirun may be in network namespaces of their own.
bool on_one_host(const JobEnv& job) {
  return job.launcher != "sirtakirun" && job.local_size == job.size;
}

Result<JobEnv> job_of(const Config& config, const Environment& environment) {
  if (config.job.rank >= 0 && config.job.size > 0) {
    JobEnv job;
    job.launcher = "sirtakirun";
    job.rank = config.job.rank;
    job.size = config.job.size;
    if (job.rank >= job.size) {
      return invalid_argument("job.rank is " + std::to_string(job.rank) + " (" +
                              std::string(config.source("job.rank")) + ") but job.size is " + std::to_string(job.size) +
                              " (" + std::string(config.source("job.size")) + ")");
    }
    return job;
  }
  return detect_job(environment);
}

}  // namespace

Result<std::pair<std::string, std::uint16_t>> split_endpoint(const std::string& endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  std::string host = endpoint.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const auto port = parse_int(colon == std::string::npos ? "" : endpoint.substr(colon + 1));
  if (host.empty() || !port || *port < 1 || *port > 65535) {
    return invalid_argument("\"" + endpoint + "\" is no address; expected host:port or [IPv6]:port");
  }
  return std::pair(host, static_cast<std::uint16_t>(*port));
}

Status MeetingPoint::host(int size, const std::string& bind_address, PortRange ports, const Config& config) {
  if (size < 1) {
    return invalid_argument("a job has at least one rank, not " + std::to_string(size));
  }
  if (hub_ && hub_size_ == size) {
    return {};
  }
  hub_.reset();
  if (!secret_.is_set()) {
    SRT_ASSIGN(secret_, rendezvous::Secret::generate());
  }
  hub::CoordinatorServerOptions options = hub::coordinator_options(config);
  options.server.bind_address = bind_address;
  options.server.port_first = ports.first;
  options.server.port_last = ports.last;
  options.server.secret = secret_;
  options.server.size = size;
  options.elastic_max = 0;               // only sirtakirun starts lost ranks again,
  options.gives_up_unconnected = false;  // and outlives any of them; this rank has the hub
  SRT_ASSIGN(auto made_logger, Logger::create(config, -1));
  hub::CoordinatorServerEvents events;
  events.on_warning = [logger = std::move(made_logger)](const std::string& text) { logger->warn(text); };
  SRT_ASSIGN(hub_, hub::CoordinatorServer::start(std::move(options), std::move(events)));
  hub_size_ = size;
  return {};
}

Result<engine::JobSpec> MeetingPoint::find(const Config& config, const Environment& environment, const GivenJob& given,
                                           const std::function<bool()>& interrupted) {
  if (given.size > 0) {
    engine::JobSpec spec{given.rank, given.size, given.rendezvous, {}};
    if (given.rank < 0 || given.rank >= given.size) {
      return invalid_argument("rank is " + std::to_string(given.rank) + " but size is " + std::to_string(given.size));
    }
    const auto launched = detect_job(environment);
    spec.one_host = launched && launched->size == given.size && on_one_host(*launched);
    if (!given.rendezvous.empty()) {
      SRT_ASSIGN(spec.secret, rendezvous::Secret::from_hex(given.secret_hex));
    } else if (given.size > 1) {
      return invalid_argument("several ranks need a rendezvous and a secret (sirtaki_host)");
    }
    return spec;
  }
  SRT_ASSIGN(const JobEnv job, job_of(config, environment));
  engine::JobSpec spec{job.rank, job.size, config.job.rendezvous, {}};
  spec.one_host = on_one_host(job);
  if (job.launcher == "sirtakirun" && !config.job.rendezvous.empty()) {
    SRT_ASSIGN(spec.secret, configured_secret(config));
    return spec;
  }
  if (job.size == 1) {
    spec.rendezvous.clear();
    return spec;
  }
  if (job.launcher == "sirtakirun") {
    return invalid_argument("job.size is " + std::to_string(job.size) +
                            " but job.rendezvous is not set; start the job with sirtakirun, which sets both");
  }
  const bool known_port = !config.job.rendezvous.empty() || (!job.host.empty() && config.job.port_range.first != 0);
  const bool one_host = job.local_size == job.size;
  if (config.job.rendezvous.empty() && one_host) {
    return meet_on_one_host(config, job, interrupted);
  }
  if (!known_port) {
    return invalid_argument("the ranks were started by " + job.launcher +
                            " on several hosts and do not know where to meet; set SIRTAKI_JOB_RENDEZVOUS to host:port "
                            "with the host of rank 0 and a free port there, or start the job with sirtakirun");
  }
  return meet_hosted(config, job);
}

Result<rendezvous::Secret> MeetingPoint::configured_secret(const Config& config) {
  const bool has_fd = config.job.secret_fd >= 0;
  if (!has_fd && config.job.secret_file.empty()) {
    return invalid_argument(std::string("the job has no secret; ") + kSecretFix);
  }
  if (fd_secret_) {
    return *fd_secret_;
  }
  // A file comes first: wrapper programs may have closed the descriptor and reused its number.
  Status file_error;
  if (!config.job.secret_file.empty()) {
    auto secret = rendezvous::Secret::from_file(config.job.secret_file);
    if (secret && has_fd) {
      // Reading closes the descriptor: programs started by this rank would inherit it, and the secret with it.
      static_cast<void>(rendezvous::Secret::from_fd(config.job.secret_fd));
      fd_secret_ = *secret;
    }
    if (secret || !has_fd) {
      return secret;
    }
    file_error = secret.status();
  }
  auto secret = rendezvous::Secret::from_fd(config.job.secret_fd);
  if (!secret) {
    return file_error.ok()
               ? secret
               : Result<rendezvous::Secret>(unavailable(
                     "the job's secret does not reach this process: " + std::string(secret.status().text()) + "; and " +
                     std::string(file_error.text()) +
                     ". Run as the user who runs sirtakirun, in the same container (or PID namespace), or let "
                     "the wrapper keep descriptors open (subprocess: close_fds=False, pass_fds)"));
  }
  fd_secret_ = *secret;
  return *fd_secret_;
}

Result<engine::JobSpec> MeetingPoint::meet_hosted(const Config& config, const JobEnv& job) {
  engine::JobSpec spec{job.rank, job.size, config.job.rendezvous, {}};
  spec.one_host = on_one_host(job);
  if (spec.rendezvous.empty()) {
    const bool v6 = job.host.find(':') != std::string::npos;
    spec.rendezvous = (v6 ? "[" + job.host + "]" : job.host) + ":" + std::to_string(config.job.port_range.first);
  }
  auto parsed = split_endpoint(spec.rendezvous);
  SRT_TRY(parsed.status().with_context("SIRTAKI_JOB_RENDEZVOUS (job.rendezvous)"));
  const auto endpoint = *std::move(parsed);
  SRT_ASSIGN(spec.secret, configured_secret(config));
  if (job.rank == 0) {
    secret_ = spec.secret;
    const PortRange port{endpoint.second, endpoint.second};
    SRT_TRY(host(job.size, is_loopback(endpoint.first) ? endpoint.first : "::", port, config));
  }
  return spec;
}

Result<engine::JobSpec> MeetingPoint::meet_on_one_host(const Config& config, const JobEnv& job,
                                                       const std::function<bool()>& interrupted) {
  engine::JobSpec spec{job.rank, job.size, "", {}};
  SRT_ASSIGN(const std::string path, meeting_path(meeting_directory(), job));
  if (job.rank != 0) {
    SRT_ASSIGN(auto meeting, await_meeting(path, config.control.connect_timeout, interrupted));
    spec.rendezvous = std::move(meeting.endpoint);
    spec.secret = meeting.secret;
    return spec;
  }
  SRT_TRY(host(job.size, "127.0.0.1", config.job.port_range, config));
  spec.rendezvous = "127.0.0.1:" + std::to_string(port());
  spec.secret = secret_;
  SRT_TRY(write_meeting(path, Meeting{spec.rendezvous, spec.secret}));
  meeting_file_ = path;
  return spec;
}

void MeetingPoint::end(Duration grace) {
  if (hub_) {
    hub_->drain(grace);
    hub_.reset();
  }
  if (!meeting_file_.empty()) {
    unlink(meeting_file_.c_str());
    meeting_file_.clear();
  }
}

}  // namespace sirtaki::adapters
