#include "runtime/engine/epoch/data_plane.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/net/catalog.h"
#include "runtime/net/collectives/hierarchy.h"
#include "runtime/net/link/inproc_link.h"
#include "runtime/net/shm/shared_memory.h"
#include "runtime/net/tcp/endpoints.h"
#include "runtime/net/tcp/transport.h"

namespace sirtaki::engine {
namespace {

// Times for which a rank that cannot connect waits for the coordinator: for the fate of another rank, and for an
// answer.
constexpr Duration kVerdictGrace = std::chrono::milliseconds(500);
constexpr Duration kAnswerGrace = std::chrono::seconds(1);
constexpr Duration kPoll = std::chrono::milliseconds(100);

// Bounds of the shared memory of one rank, which holds the data that its credit allows in flight, and of all ranks of a
// host together.
constexpr std::size_t kLeastShared = std::size_t{4} * 1024 * 1024;
constexpr std::size_t kMostShared = std::size_t{64} * 1024 * 1024;
constexpr std::size_t kMostSharedOfHost = std::size_t{512} * 1024 * 1024;

net::BackendSetup setup_for(net::PointToPoint& link, const Config& config) {
  net::BackendSetup setup;
  setup.link = &link;
  setup.direct.exchange_bytes = static_cast<std::size_t>(config.net.exchange_bytes);
  setup.direct.keep_staging_bytes = static_cast<std::size_t>(config.schedule.credit_bytes);
  return setup;
}

class SingleDataPlane final : public DataPlane {
 public:
  explicit SingleDataPlane(rendezvous::AsioLoop& loop) : loop_(loop), group_(net::InprocGroup::create(1)) {}

  Status open(const Config& config) {
    Status status;
    loop_.run_sync([&] {
      link_ = group_->endpoint(0, loop_);
      auto made = net::make_collectives("direct", setup_for(*link_, config));
      status = made.status();
      if (made) {
        collectives_ = std::move(*made);
      }
    });
    return status;
  }

  Result<std::vector<std::string>> endpoints() const override { return std::vector<std::string>{}; }
  Status connect(const rendezvous::Membership& /*membership*/, Rank /*rank*/,
                 const std::function<bool()>& /*interrupted*/) override {
    return {};
  }
  void abort(const Status& /*cause*/) override {}
  void set_on_peer_lost(std::function<void(Rank, const Status&)> /*callback*/) override {}
  net::Collectives& collectives() override { return *collectives_; }
  net::PointToPoint& link() override { return *link_; }
  void close() override {
    loop_.run_sync([this] {
      collectives_.reset();
      link_.reset();
    });
  }
  void drop() override { close(); }
  std::string peers_json() const override { return "[]"; }
  std::string_view path() const override { return "local"; }

 private:
  rendezvous::AsioLoop& loop() override { return loop_; }

  rendezvous::AsioLoop& loop_;
  std::shared_ptr<net::InprocGroup> group_;
  std::unique_ptr<net::InprocEndpoint> link_;
  std::unique_ptr<net::Collectives> collectives_;
};

class MeshPlane final : public DataPlane {
 public:
  MeshPlane(rendezvous::AsioLoop& loop, const Config& config, std::string control_address)
      : loop_(loop), config_(config), control_address_(std::move(control_address)) {}

  Status open(const rendezvous::Secret& secret, int ranks) {
    net::TransportOptions options;
    SRT_ASSIGN(const std::vector<std::string> addresses, net::data_addresses(choice()));
    options.bind_address = addresses.size() == 1 ? addresses.front() : "";
    options.ranks = ranks;
    options.port_first = config_.job.port_range.first;
    options.port_last = config_.job.port_range.last;
    options.connect_timeout = config_.control.connect_timeout;
    options.close_timeout = config_.control.shutdown_grace;
    options.limits.eager_bytes = static_cast<std::size_t>(config_.net.eager_bytes);
    options.limits.window_bytes = static_cast<std::size_t>(config_.net.window_bytes);
    options.limits.fragment_bytes = static_cast<std::size_t>(config_.net.fragment_bytes);
    Status status;
    loop_.run_sync([&] {
      transport_ = std::make_unique<net::Transport>(loop_, secret, options);
      status = transport_->listen();
    });
    return status;
  }

  Result<std::vector<std::string>> endpoints() const override {
    net::EndpointChoice chosen = choice();
    loop_.run_sync([&] { chosen.port = transport_->port(); });
    return net::data_endpoints(chosen);
  }

  Status connect(const rendezvous::Membership& membership, Rank rank,
                 const std::function<bool()>& interrupted) override {
    SRT_TRY(wait(interrupted, [&](Done done) {
      transport_->set_on_peer_lost([this](Rank peer, const Status& cause) { on_peer_lost_(peer, cause); });
      transport_->connect(membership, rank, std::move(done));
    }));
    const int local = static_cast<int>(membership.local_ranks(rank).size());
    if (config_.net.hierarchy == "auto" && config_.net.backend == "direct") {
      hosts_ = fitting_hosts(membership);
    }
    if (may_share(membership, local)) {
      SRT_TRY(wait(interrupted, [this, local](Done done) { share(local, std::move(done)); }));
    }
    Status status;
    loop_.run_sync([&] {
      net::BackendSetup setup = setup_for(*transport_, config_);
      setup.shared = shared_;
      setup.direct.hosts = hosts_;
      auto made = net::make_collectives(config_.net.backend, setup);
      status = made.status();
      if (made) {
        collectives_ = std::move(*made);
      }
    });
    return status;
  }

  std::vector<Rank> unreachable() const override {
    std::vector<Rank> ranks;
    loop_.run_sync([&] { ranks = transport_->unreachable(); });
    return ranks;
  }

  void abort(const Status& cause) override {
    if (transport_) {
      transport_->fail(cause);
    }
  }

  void set_on_peer_lost(std::function<void(Rank, const Status&)> callback) override {
    on_peer_lost_ = std::move(callback);
  }

  net::Collectives& collectives() override { return *collectives_; }
  net::PointToPoint& link() override { return *transport_; }

  void close() override {
    if (!transport_) {
      return;
    }
    auto promise = std::make_shared<std::promise<void>>();
    std::future<void> closed = promise->get_future();
    loop_.run_sync([&] { transport_->close([promise](const Status&) { promise->set_value(); }); });
    closed.wait_for(config_.control.shutdown_grace + std::chrono::seconds(1));
    drop();
  }

  void drop() override {
    loop_.run_sync([this] {
      collectives_.reset();
      shared_.reset();
      local_link_.reset();
      transport_.reset();
    });
  }

  std::string_view path() const override {
    if (hosts_.count() > 1) {
      return shared_ ? "shared memory on a host, tcp between hosts" : "tcp, host by host";
    }
    return shared_ ? "shared memory" : "tcp";
  }
  std::string_view path_note() const override { return path_note_; }

  std::string peers_json() const override {
    JsonWriter json;
    json.begin_array();
    if (transport_) {
      for (const net::PeerStats& peer : transport_->stats()) {
        json.begin_object();
        json.key("peer").value(peer.peer);
        json.key("connected").value(peer.connected);
        json.key("bytes_sent").value(peer.counters.bytes_sent);
        json.key("bytes_received").value(peer.counters.bytes_received);
        json.key("messages_sent").value(peer.counters.messages_sent);
        json.end_object();
      }
    }
    json.end_array();
    return std::move(json).take();
  }
  Duration round_trip() const override { return collectives_ ? collectives_->round_trip() : Duration(0); }

 private:
  net::EndpointChoice choice() const {
    net::EndpointChoice choice;
    choice.address = config_.net.address;
    choice.interface = config_.net.interface;
    choice.control_address = control_address_;
    return choice;
  }

  // Runs `begin` on the loop and waits until it has called its argument, a Done.
  template <class Begin>
  Status wait(const std::function<bool()>& interrupted, Begin begin) {
    auto promise = std::make_shared<std::promise<Status>>();
    std::future<Status> future = promise->get_future();
    loop_.run_sync([&] { begin([promise](Status status) { promise->set_value(std::move(status)); }); });
    while (future.wait_for(kPoll) != std::future_status::ready) {
      if (interrupted && interrupted()) {
        return {Code::kAborted, "interrupted while connecting to the other ranks"};
      }
    }
    return future.get();
  }

  // Returns the hosts if a hierarchy of collectives pays off, else none. Equal on all ranks.
  static net::Hosts fitting_hosts(const rendezvous::Membership& membership) {
    net::Hosts hosts(membership.hosts());
    return net::HierarchicalCollectives::fits(hosts) ? hosts : net::Hosts();
  }

  // Returns true if the ranks of this host may use shared memory. Equal on all ranks of a host.
  bool may_share(const rendezvous::Membership& membership, int local) const {
    return config_.net.shared_memory == "auto" && config_.net.backend == "direct" &&
           (membership.host_count() == 1 || hosts_.count() > 1) && local > 1 && local <= net::SharedMemory::kMaxRanks;
  }

  void share(int local, Done done) {
    net::SharedMemorySetup setup;
    const std::size_t most = std::min(kMostShared, kMostSharedOfHost / static_cast<std::size_t>(local));
    setup.bytes = std::clamp(static_cast<std::size_t>(config_.schedule.credit_bytes), kLeastShared, most);
    setup.timeout = config_.control.connect_timeout;
    net::PointToPoint* link = transport_.get();
    if (hosts_.count() > 1) {
      local_link_ = net::local_part(*transport_, hosts_);
      link = local_link_.get();
    }
    net::connect_shared_memory(*link, setup,
                               [this, moved = std::move(done)](Result<net::SharedMemoryOutcome> outcome) mutable {
                                 if (outcome) {
                                   shared_ = std::move(outcome->memory);
                                   path_note_ = std::move(outcome->refused);
                                 }
                                 moved(outcome.status());
                               });
  }

  rendezvous::AsioLoop& loop() override { return loop_; }

  rendezvous::AsioLoop& loop_;
  const Config& config_;
  const std::string control_address_;
  std::unique_ptr<net::Transport> transport_;
  net::Hosts hosts_;                               // empty unless several hosts have several ranks
  std::unique_ptr<net::SubgroupLink> local_link_;  // null: all ranks are on one host
  std::shared_ptr<net::SharedMemory> shared_;
  std::string path_note_;
  std::unique_ptr<net::Collectives> collectives_;
  std::function<void(Rank, const Status&)> on_peer_lost_;
};

}  // namespace

Status DataPlane::start(ControlPlane& control, const rendezvous::Membership& membership, Rank rank,
                        const std::function<bool()>& interrupted) {
  const auto told = std::make_shared<std::promise<Status>>();
  std::future<Status> verdict = told->get_future();
  loop().run_sync([&] {
    control.watch([this, told, first = true](const Status& cause) mutable {
      if (std::exchange(first, false)) {
        abort(cause);
        told->set_value(cause);
      }
    });
  });
  Status status = connect(membership, rank, interrupted);
  if (status.ok()) {
    return status;
  }
  const Unable unable = control.unable();
  status = status.with_context("rank " + std::to_string(rank) + " (host " +
                               membership.members[static_cast<std::size_t>(rank)].hostname + ") at the start of " +
                               (unable == Unable::kEndsJob ? "the job" : "an epoch"));
  const bool ends_epoch = unable == Unable::kEndsEpoch && status.code() != Code::kAborted;
  if (const std::vector<Rank> missing = unreachable(); ends_epoch && !missing.empty()) {
    control.set_unreachable(missing);  // the hub reads both with the request for the next epoch, whoever ends this one
    control.set_cause(status);
  }
  // The coordinator knows the first cause of a connection that has ended, so its verdict replaces the local error. A
  // rank that leaves does so before the others, which cannot connect to it either, end the epoch.
  const Duration grace = unable == Unable::kEndsRank ? kVerdictGrace : std::max(kVerdictGrace, control.cause_grace());
  if (verdict.wait_for(grace) == std::future_status::ready) {
    return verdict.get();
  }
  if (unable == Unable::kEndsJob) {
    control.send(sirtaki::control::JobBroken{status});
    if (status.code() != Code::kAborted && verdict.wait_for(kAnswerGrace) == std::future_status::ready) {
      return verdict.get();
    }
  } else if (ends_epoch) {
    control.set_cause(status);
    return {Code::kRanksChanged, std::string(status.text()), status.blame()};
  }
  return status;
}

Result<std::unique_ptr<DataPlane>> DataPlane::single(rendezvous::AsioLoop& loop, const Config& config) {
  auto plane = std::make_unique<SingleDataPlane>(loop);
  SRT_TRY(plane->open(config));
  return std::unique_ptr<DataPlane>(std::move(plane));
}

Result<std::unique_ptr<DataPlane>> DataPlane::listen(rendezvous::AsioLoop& loop, const rendezvous::Secret& secret,
                                                     const Config& config, int ranks, std::string control_address) {
  auto plane = std::make_unique<MeshPlane>(loop, config, std::move(control_address));
  if (Status status = plane->open(secret, ranks); !status.ok()) {
    plane->close();
    return status;
  }
  return std::unique_ptr<DataPlane>(std::move(plane));
}

}  // namespace sirtaki::engine
