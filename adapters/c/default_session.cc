#include "adapters/c/default_session.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "runtime/base/config/config_load.h"
#include "runtime/engine/session/device_choice.h"

namespace sirtaki::adapters {
namespace {

Result<std::shared_ptr<const Config>> load(const std::string& program) {
  ConfigSources sources = process_sources();
  sources.program = program;
  return load_config(sources);
}

Status not_initialized(bool forked) {
  return {Code::kShutdown, forked ? "this process is a fork of one that uses Sirtaki and has no session of its own; "
                                    "start it with the spawn method when it must communicate"
                                  : "Sirtaki is not initialized; call init() first"};
}

void describe(Active& active) {
  const rendezvous::Membership& members = active.session->membership();
  const Rank rank = active.session->rank();
  const auto local = members.local_ranks(rank);
  active.local_size = static_cast<int>(local.size());
  active.local_rank = static_cast<int>(std::ranges::find(local, rank) - local.begin());
  const auto hosts = members.hosts();
  active.cross_rank = 0;
  active.cross_size = 0;
  for (const std::vector<Rank>& host : hosts) {
    if (host.size() > static_cast<std::size_t>(active.local_rank)) {
      active.cross_rank += host[static_cast<std::size_t>(active.local_rank)] < rank ? 1 : 0;
      ++active.cross_size;
    }
  }
  active.homogeneous =
      std::ranges::all_of(hosts, [&](const std::vector<Rank>& host) { return host.size() == local.size(); });
}

}  // namespace

DefaultSession& DefaultSession::instance() {
  // Never destroyed: threads of the program may still call when static objects die.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): the one session behind the C interface
  static auto* const kInstance = new DefaultSession;
  return *kInstance;
}

DefaultSession::DefaultSession() {
  pthread_atfork(nullptr, nullptr, [] { instance().forked_.store(true, std::memory_order_relaxed); });
  std::atexit(end_of_process);
}

void DefaultSession::end_of_process() {
  DefaultSession& self = instance();
  if (self.forked_.load(std::memory_order_relaxed)) {
    return;
  }
  // A thread stuck in init() must not keep the process from ending.
  const std::unique_lock lock(self.life_mutex_, std::try_to_lock);
  if (lock) {
    self.meeting_point_.end(self.grace_);
  }
}

Status DefaultSession::init(const InitRequest& request) {
  if (forked_.load(std::memory_order_relaxed)) {
    return not_initialized(true);
  }
  const std::lock_guard lock(life_mutex_);
  if (active()) {
    return {};
  }
  SRT_ASSIGN(auto config, load(request.options_toml));
  const Interrupt interrupt = request.interrupt;
  const auto interrupted = [interrupt] { return interrupt.raised(); };
  SRT_ASSIGN(auto job, meeting_point_.find(*config, process_environment(), request.job, interrupted));
  grace_ = config->control.shutdown_grace;
  if (config->elastic.min > 0 && !job.rendezvous.empty()) {
    SRT_ASSIGN(job.line, engine::connect_line(*config, job, interrupted));
  }
  opening_ = {std::move(config), std::move(job), interrupt};
  Status status = open_session();
  if (!status.ok()) {
    opening_ = {};
  }
  return status;
}

// Opens the session of the present or next epoch. Ranks that are lost meanwhile are left out.
Status DefaultSession::open_session() {
  const auto interrupted = [interrupt = opening_.interrupt] { return interrupt.raised(); };
  auto made = std::make_shared<Active>();
  while (!made->session) {
    auto opened = engine::Session::open(opening_.config, opening_.job, interrupted);
    if (!opened && opened.status().code() != Code::kRanksChanged) {
      return opened.status();
    }
    made->session = opened ? *std::move(opened) : nullptr;
  }
  ++generation_;
  if (generation_ == 0) {
    generation_ = 1;
  }
  made->generation = generation_;
  describe(*made);
  const std::lock_guard state(mutex_);
  active_ = std::move(made);
  return {};
}

Status DefaultSession::shutdown() {
  if (forked_.load(std::memory_order_relaxed)) {
    return {};
  }
  const std::lock_guard lock(life_mutex_);
  std::shared_ptr<Active> closing;
  {
    const std::lock_guard state(mutex_);
    closing = active_;
  }
  if (closing) {
    // active_ stays set until the session is closed: close() reports completed requests through it, and until then the
    // session still uses memory of the caller.
    // A rank without the state of the job has not come to the end of its program: the others take it for lost, where a
    // good-bye would end the job for all.
    const bool fresh = opening_.job.line && engine::growth(*opening_.job.line).fresh;
    fresh ? closing->session->drop() : closing->session->close();
    if (fresh) {
      engine::cut(*opening_.job.line);  // or a result that the program still holds would keep it open
    }
    const std::lock_guard state(mutex_);
    active_ = nullptr;
  }
  opening_ = {};
  return {};
}

Status DefaultSession::admit(bool admits) {
  const std::lock_guard lock(life_mutex_);
  SRT_TRY(need().status());
  if (opening_.job.line) {
    engine::admit(*opening_.job.line, admits);
  }
  return {};
}

Result<engine::Growth> DefaultSession::growth() {
  const std::lock_guard lock(life_mutex_);
  SRT_TRY(need().status());
  return opening_.job.line ? engine::growth(*opening_.job.line) : engine::Growth();
}

Status DefaultSession::regroup(std::uint32_t change) {
  const std::lock_guard lock(life_mutex_);
  SRT_ASSIGN(const std::shared_ptr<Active> ending, need());
  if (!opening_.job.line) {
    return {Code::kUnsupported, "this job is not elastic, so it ends when a rank is lost; set elastic.min"};
  }
  engine::agree(*opening_.job.line, change);
  if (change == 0) {
    // The coordinator reports a loss after this silence at the latest; twice the time is enough on a busy host.
    static_cast<void>(ending->session->await_failure(2 * heartbeats_of(*opening_.config).timeout));
  }
  // active_ stays set until another takes its place: calls with its handles get its error.
  ending->session->drop();
  Status status = open_session();
  if (!status.ok()) {
    engine::cut(*opening_.job.line);
    opening_ = {};
    const std::lock_guard state(mutex_);
    active_ = nullptr;
    return status;
  }
  const std::lock_guard state(mutex_);
  regrouped_ = ending->generation;
  committed_ = engine::committed_streams(*opening_.job.line);
  return {};
}

Result<bool> DefaultSession::committed(std::uint16_t generation, StreamId stream) const {
  SRT_TRY(need().status());
  const std::lock_guard state(mutex_);
  if (generation != regrouped_) {
    return invalid_argument("the stream does not belong to the session before the last regroup");
  }
  return committed_.count(stream) != 0;
}

Status DefaultSession::host(int size, const std::string& bind_address, std::uint16_t& port, std::string& secret_hex) {
  if (forked_.load(std::memory_order_relaxed)) {
    return not_initialized(true);
  }
  const std::lock_guard lock(life_mutex_);
  SRT_ASSIGN(const auto config, load(""));
  grace_ = config->control.shutdown_grace;
  SRT_TRY(meeting_point_.host(size, bind_address, config->job.port_range, *config));
  port = meeting_point_.port();
  secret_hex = meeting_point_.secret().to_hex();
  return {};
}

std::shared_ptr<Active> DefaultSession::active() const {
  if (forked_.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  const std::lock_guard state(mutex_);
  return active_;
}

Result<std::shared_ptr<Active>> DefaultSession::need() const {
  auto found = active();
  if (!found) {
    return not_initialized(forked_.load(std::memory_order_relaxed));
  }
  return found;
}

Result<std::shared_ptr<Active>> DefaultSession::need(std::uint16_t generation) const {
  SRT_ASSIGN(auto found, need());
  if (found->generation != generation) {
    return Status(Code::kShutdown, "this request or stream belongs to a session that has ended; make a new one");
  }
  return found;
}

Result<std::string> DefaultSession::options_json() const {
  SRT_ASSIGN(const auto options, config());
  return sirtaki::options_json(*options);
}

Result<std::shared_ptr<const Config>> DefaultSession::config() const {
  if (const auto found = active()) {
    return std::shared_ptr<const Config>(found, &found->session->config());
  }
  return load("");
}

Result<int> DefaultSession::nccl_version() const {
  SRT_ASSIGN(const auto options, config());
  return engine::nccl_version(options->device);
}

void DefaultSession::pin(sirtaki_request request, std::shared_ptr<Active> owner) {
  const std::lock_guard state(mutex_);
  pinned_.insert_or_assign(request, std::move(owner));
}

std::shared_ptr<Active> DefaultSession::unpin(sirtaki_request request) {
  if (forked_.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  const std::lock_guard state(mutex_);
  const auto found = pinned_.find(request);
  if (found == pinned_.end()) {
    return nullptr;
  }
  auto owner = std::move(found->second);
  pinned_.erase(found);
  return owner;
}

}  // namespace sirtaki::adapters
