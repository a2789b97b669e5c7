#include "runtime/hub/coordinator_server.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/telemetry/trace_writer.h"
#include "runtime/control/bundle.h"
#include "runtime/control/coordinator.h"
#include "runtime/control/tree.h"
#include "runtime/hub/elastic_hub.h"

namespace sirtaki::hub {
namespace {

using control::Coordinator;

// Covers the messages by which an epoch ends and the next one begins, on a busy host.
constexpr Duration kRegroupGrace = std::chrono::seconds(10);

// Number of connected members, for drain(): the only state that other threads read.
class Presence {
 public:
  void set(int count) {
    const std::lock_guard lock(mutex_);
    count_ = count;
    changed_.notify_all();
  }
  void decrement() {
    const std::lock_guard lock(mutex_);
    count_ = count_ > 0 ? count_ - 1 : 0;
    changed_.notify_all();
  }
  bool wait_empty(Duration grace) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, grace, [&] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class CoordinatorServerImpl final : public CoordinatorServer, private rendezvous::ServerHandler {
 public:
  CoordinatorServerImpl(CoordinatorServerOptions options, CoordinatorServerEvents events)
      : options_(std::move(options)), events_(std::move(events)), start_size_(options_.server.size) {
    options_.server.elastic = options_.elastic_min > 0;
    options_.server.grows = options_.server.elastic && options_.elastic_max > 0;
    if (options_.server.grows) {
      options_.server.size = std::max(start_size_, options_.elastic_max) + options_.spares;
    }
  }

  ~CoordinatorServerImpl() override {
    // Runs on the loop, because handlers of arriving messages read server_ there.
    loop_.run_sync([this] {
      server_.reset();
      loop_.cancel(tick_);
      coordinator_.reset();
      elastic_.reset();
    });
    // The first call waits until all posted trace records are written. trace_loop_ posts to loop_, so it stops first.
    trace_loop_.run_sync([] {});
    trace_loop_.stop();
    loop_.stop();
  }

  Status start() {
    if (options_.server.elastic) {
      SRT_TRY(start_elastic());
    }
    auto server = rendezvous::Server::start(loop_, options_.server, *this);
    if (!server) {
      return server.status();
    }
    // Handlers may already run on the loop, where they read server_, so it is set there.
    loop_.run_sync([&] { server_ = std::move(*server); });
    return {};
  }

  std::uint16_t port() const override { return server_->port(); }

  void report_exit(Rank rank, std::string what) override {
    loop_.post([this, rank, what = std::move(what)] { server_->report_exit(rank, what); });
  }

  void give_up(Rank slot) override {
    loop_.post([this, slot] {
      if (elastic_) {
        elastic_->give_up(*server_, slot);
      }
    });
  }

  void set_host(Rank slot, std::string host) override {
    loop_.post([this, slot, host = std::move(host)] {
      if (elastic_) {
        elastic_->set_host(slot, host);
      }
    });
  }

  void begin(int ranks) override {
    loop_.post([this, ranks] {
      if (elastic_) {
        elastic_->begin(*server_, ranks);
      }
    });
  }

  void announce(Rank slot, bool on_its_way) override {
    loop_.post([this, slot, on_its_way] {
      if (elastic_) {
        elastic_->announce(*server_, slot, on_its_way);
      }
    });
  }

  bool drain(Duration grace) override { return presence_.wait_empty(grace); }

 private:
  // ---- elastic jobs ----

  Status start_elastic() {
    const std::string ranks = std::to_string(start_size_) + " ranks";
    if (options_.elastic_min > start_size_) {
      return invalid_argument("elastic.min is " + std::to_string(options_.elastic_min) + ", but the job has only " +
                              ranks);
    }
    if (options_.elastic_max > 0 && options_.elastic_max < start_size_) {
      return invalid_argument("elastic.max is " + std::to_string(options_.elastic_max) + ", but the job has " + ranks);
    }
    control::RosterOptions roster;
    roster.start = start_size_;
    roster.min = options_.elastic_min;
    roster.max = options_.elastic_max;
    roster.refills = options_.refills;
    roster.gives_up_unconnected = options_.gives_up_unconnected;
    roster.start_timeout = options_.server.join_timeout;
    roster.regroup_timeout = options_.regroup_timeout;
    roster.wait_timeout = options_.regroup_timeout;
    roster.state_timeout = options_.state_timeout;
    roster.repeat_within = options_.repeat_within;
    ElasticHub::Events events;
    events.formed = [this](const rendezvous::Membership& membership) { on_epoch(membership); };
    events.ended = [this] { on_epoch_end(); };
    events.survived = [this](const Survived& survived) {
      if (events_.on_survived) {
        events_.on_survived(survived);
      }
    };
    events.new_rank = [this](const NewRank& rank) {
      if (events_.on_new_rank) {
        events_.on_new_rank(rank);
      }
    };
    events.admits = [this](bool admits) {
      if (events_.on_admits) {
        events_.on_admits(admits);
      }
    };
    events.lost = [this](Rank slot, const Status& cause) {
      if (events_.on_lost) {
        events_.on_lost(slot, cause);
      }
    };
    events.over = [this](const Status& why) {
      if (events_.on_over) {
        events_.on_over(why);
      }
    };
    events.connected = [this](int count) { presence_.set(count); };
    elastic_ = std::make_unique<ElasticHub>(loop_, roster, options_.server.size, std::move(events));
    return {};
  }

  void on_waiting(rendezvous::PeerId peer, Rank slot, ConstBytes report) override {
    elastic_->on_waiting(*server_, peer, slot, report);
  }
  void on_report(rendezvous::PeerId peer, ConstBytes report) override { elastic_->on_report(*server_, peer, report); }
  void on_quit(rendezvous::PeerId peer, bool at_end) override { elastic_->on_quit(*server_, peer, at_end); }
  void on_gone(rendezvous::PeerId peer, const Status& cause) override { elastic_->on_gone(*server_, peer, cause); }
  void on_absent(Rank slot, const Status& cause) override { elastic_->on_absent(*server_, slot, cause); }

  // ---- rendezvous ----

  void on_epoch(const rendezvous::Membership& membership) override {
    if (!elastic_) {
      presence_.set(membership.size());
    }
    all_ = control::RankSet::range(0, membership.size());
    tops_ = control::plan_tree(membership.size(), membership.fanout);
    std::erase_if(tops_, [](const control::RelayPlace& place) { return place.parent >= 0; });
    coordinator_ = std::make_unique<Coordinator>(
        membership.size(), control::StallOptions{options_.stuck_after, options_.stall_warn, options_.stall_fail},
        tops_.empty() ? Duration() : options_.server.heartbeat_timeout, options_.coordinator);
    if (events_.on_epoch) {
      events_.on_epoch(membership);
    }
  }

  void on_message(Rank from, ConstBytes bytes) override {
    auto message = control::decode_member_message(bytes);
    if (!message) {
      return fail_job(from, message.status());
    }
    if (const auto* broken = std::get_if<control::JobBroken>(&*message)) {
      send(all_, control::JobFailed{broken->status});
    } else if (const auto* chunk = std::get_if<control::TraceChunk>(&*message)) {
      on_trace(from, *chunk);
    } else if (const auto* request = std::get_if<control::TraceRequest>(&*message)) {
      on_trace(*request);
    } else if (coordinator_) {
      coordinator_->on_message(from, *message, loop_.now());
      act();
    }
  }

  void on_tree(Rank from, ConstBytes bytes) override {
    auto bundle = control::decode_bundle(bytes, all_.size());
    if (!bundle || !coordinator_) {
      return bundle ? void() : fail_job(from, bundle.status());
    }
    control::RankSet below;
    for (const control::RelayPlace& top : tops_) {
      if (top.host == from) {
        below.add(top.below);
      }
    }
    for (const control::SourcedMessage& sourced : *bundle) {
      if (!below.contains(sourced.ranks)) {
        return fail_job(from, corrupt("it speaks for " + sourced.ranks.to_string() + ", which it does not relay for"));
      }
      coordinator_->on_received(sourced.ranks, sourced.message, loop_.now());
      if (std::holds_alternative<control::Leaving>(sourced.message)) {
        // A rank that relays for others stays connected until they are done; announce its leave now, so that no rank
        // waits for its work meanwhile.
        for (const Rank rank : sourced.ranks.ranks()) {
          server_->announce_leave(rank);
        }
      }
    }
    act();
  }

  void on_left(Rank rank) override {
    if (!elastic_) {
      presence_.decrement();
    }
    if (coordinator_) {
      coordinator_->on_left(rank, loop_.now());
      act();
    }
    if (events_.on_left) {
      events_.on_left(elastic_ ? elastic_->slot_of(rank) : rank);
    }
  }

  void on_lost(Rank rank, const Status& cause) override {
    presence_.decrement();
    if (coordinator_) {
      coordinator_->on_lost(rank);
      act();
    }
    if (events_.on_lost) {
      events_.on_lost(rank, cause);
    }
  }

  void on_warning(const std::string& line) override { warn(line); }

  void on_epoch_end() override {
    if (!elastic_) {
      presence_.set(0);
    }
    coordinator_.reset();
    close_trace();
    loop_.cancel(tick_);
    tick_ = {};
  }

  // ---- coordinator ----

  void act() {
    Coordinator::Actions actions = coordinator_->take_actions();
    if (tops_.empty()) {
      for (const Coordinator::Send& action : actions.sends) {
        send(action.to, action.message);
      }
    } else {
      spread(actions.sends);
    }
    for (const std::string& warning : actions.warnings) {
      warn(warning);
    }
    schedule_tick();
  }

  // Sends a message to each rank over its own connection.
  void send(const control::RankSet& to, const control::CoordinatorMessage& message) {
    const std::vector<std::byte> bytes = control::encode(message);
    for (const Rank r : to.ranks()) {
      server_->send(r, bytes);
    }
  }

  void spread(const std::vector<Coordinator::Send>& sends) {
    for (const control::RelayPlace& top : tops_) {
      control::Spread part;
      for (const Coordinator::Send& action : sends) {
        if (control::RankSet ranks = action.to.common(top.below); !ranks.empty()) {
          part.push_back({std::move(ranks), action.message});
        }
      }
      for (const auto& bytes : control::encode_parts(part)) {
        server_->send_tree(top.host, bytes);
      }
    }
  }

  void fail_job(Rank from, const Status& cause) {
    send(all_, control::JobFailed{cause.with_context("rank " + std::to_string(from))});
  }

  void schedule_tick() {
    loop_.cancel(tick_);
    tick_ = {};
    if (const auto next = coordinator_->next_tick()) {
      tick_ = loop_.after(*next - loop_.now(), [this] {
        tick_ = {};
        if (coordinator_) {
          coordinator_->on_tick(loop_.now());
          act();
        }
      });
    }
  }

  void warn(const std::string& text) {
    if (events_.on_warning) {
      events_.on_warning(text);
    }
  }

  // ---- trace ----

  void on_trace(const control::TraceRequest& request) {
    if (!request.start) {
      send(all_, control::TraceSwitch{false});
      return;
    }
    auto writer = TraceWriter::open(request.path);
    if (!writer) {
      warn("no trace is written: " + writer.status().to_string());
      return;
    }
    close_trace();
    // A slow file must not delay the coordinator, so the writer is used and destroyed on trace_loop_.
    trace_ = std::shared_ptr<TraceWriter>(std::move(*writer));
    trace_open_ = all_.size();
    send(all_, control::TraceSwitch{true});
  }

  void close_trace() {
    if (trace_) {
      trace_loop_.post([writer = std::exchange(trace_, nullptr)] {});
    }
  }

  void on_trace(Rank from, const control::TraceChunk& chunk) {
    if (!trace_) {
      return;
    }
    if (!chunk.records.empty()) {
      trace_loop_.post([this, writer = trace_, records = chunk.records, offset = server_->clock_offset(from)] {
        auto decoded = decode_timeline_chunk(records);
        Status status = decoded.status();
        if (status.ok()) {
          status = writer->add(*decoded, offset);
        }
        if (!status.ok()) {
          loop_.post([this, status] { on_trace_failed(status); });
        }
      });
    }
    if (chunk.last && --trace_open_ == 0) {
      close_trace();
    }
  }

  void on_trace_failed(const Status& status) {
    if (trace_) {
      close_trace();
      warn("the trace is incomplete: " + status.to_string());
    }
  }

  CoordinatorServerOptions options_;
  CoordinatorServerEvents events_;
  const int start_size_;  // number of processes at the start
  Presence presence_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<ElasticHub> elastic_;    // null: the job is not elastic
  std::vector<control::RelayPlace> tops_;  // relays connected to this server; empty without a tree
  std::shared_ptr<TraceWriter> trace_;     // used on trace_loop_
  int trace_open_ = 0;
  control::RankSet all_;
  TimerId tick_;
  std::unique_ptr<rendezvous::Server> server_;
  rendezvous::AsioLoop loop_{"srt-hub"};
  rendezvous::AsioLoop trace_loop_{"srt-trace"};
};

}  // namespace

CoordinatorServerOptions coordinator_options(const Config& config) {
  CoordinatorServerOptions options;
  const Heartbeats heartbeats = heartbeats_of(config);
  options.server.join_timeout = config.control.join_timeout;
  options.server.heartbeat_interval = heartbeats.interval;
  options.server.heartbeat_timeout = heartbeats.timeout;
  options.stall_warn = config.control.stall_warn;
  options.stall_fail = config.control.stall_fail;
  options.stuck_after = config.control.stuck_after;
  options.coordinator.names = static_cast<std::size_t>(config.control.names);
  options.elastic_min = config.elastic.min;
  options.elastic_max = config.elastic.max;
  options.regroup_timeout = config.elastic.timeout;
  options.state_timeout = config.elastic.join_timeout;
  // A rank that cannot connect to the others tries so long, and as long again for shared memory; then it waits for the
  // word of the coordinator about the others. NCCL starts after that, and may hang in its start or in its first work.
  const Config::DeviceOptions& device = config.device;
  const Duration links = 2 * config.control.connect_timeout;
  const Duration nccl = device.nccl_connect_timeout + std::max(device.nccl_launch_timeout, device.nccl_timeout);
  options.repeat_within = std::max(options.repeat_within, links + nccl + heartbeats.timeout + kRegroupGrace);
  return options;
}

std::string go_on_text(int remaining, Epoch next) {
  return std::to_string(remaining) + (remaining == 1 ? " rank goes" : " ranks go") + " on as epoch " +
         std::to_string(next.value);
}

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(CoordinatorServerOptions options,
                                                                    CoordinatorServerEvents events) {
  auto hub = std::make_unique<CoordinatorServerImpl>(std::move(options), std::move(events));
  SRT_TRY(hub->start());
  return std::unique_ptr<CoordinatorServer>(std::move(hub));
}

}  // namespace sirtaki::hub
