#include "tests/conformance/collectives_worlds.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "runtime/net/catalog.h"
#include "runtime/net/collectives/hierarchy.h"
#include "runtime/net/tcp/endpoints.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::net::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
};

Progress& progress() {
  static Progress shared;
  return shared;
}

std::unique_ptr<Collectives> make_backend(const std::string& name, PointToPoint& link, const DirectOptions& direct,
                                          std::shared_ptr<SharedMemory> shared = nullptr) {
  BackendSetup setup;
  setup.link = &link;
  setup.shared = std::move(shared);
  setup.direct = direct;
  auto made = make_collectives(name, setup);
  if (!made) {
    throw std::runtime_error(made.status().to_string());
  }
  return std::move(*made);
}

class LocalWorld final : public World {
 public:
  LocalWorld(int size, const WorldOptions& options) : group_(InprocGroup::create(size, options.local)) {
    for (Rank rank = 0; rank < size; ++rank) {
      links_.push_back(group_->endpoint(rank, loop_));
      ranks_.push_back(make_backend(options.backend, *links_.back(), options.direct));
    }
  }
  int size() const override { return group_->size(); }
  Collectives& at(Rank rank) override { return *ranks_[static_cast<std::size_t>(rank)]; }
  PointToPoint& link(Rank rank) override { return *links_[static_cast<std::size_t>(rank)]; }
  void on(Rank, Task task) override { loop_.post(std::move(task)); }
  bool wait(const std::function<bool()>& done) override { return loop_.run(done); }

 private:
  ManualLoop loop_;
  std::shared_ptr<InprocGroup> group_;
  std::vector<std::unique_ptr<InprocEndpoint>> links_;
  std::vector<std::unique_ptr<Collectives>> ranks_;
};

class TcpWorld final : public World {
 public:
  TcpWorld(int size, const WorldOptions& options, const std::string& host) : nodes_(static_cast<std::size_t>(size)) {
    const auto secret = rendezvous::Secret::generate();
    rendezvous::Membership membership;
    membership.epoch = Epoch(7);
    for (Rank rank = 0; rank < size; ++rank) {
      Node& node = nodes_[static_cast<std::size_t>(rank)];
      node.loop = std::make_unique<rendezvous::AsioLoop>("rank" + std::to_string(rank));
      node.loop->run_sync([&] {
        node.transport = std::make_unique<Transport>(*node.loop, *secret, options.transport);
        check(node.transport->listen());
      });
      rendezvous::Member member;
      member.rank = rank;
      member.hostname = "test";
      member.data_endpoints = {format_endpoint({host, node.transport->port()})};
      membership.members.push_back(member);
    }
    std::atomic<int> connected{0};
    std::vector<Status> results(nodes_.size());
    for (Rank rank = 0; rank < size; ++rank) {
      on(rank, [this, rank, &membership, &connected, &results] {
        nodes_[static_cast<std::size_t>(rank)].transport->connect(
            membership, rank, [rank, &connected, &results](Status status) {
              results[static_cast<std::size_t>(rank)] = std::move(status);
              ++connected;
              notify();
            });
      });
    }
    if (!wait_until([&] { return connected == size; })) {
      throw std::runtime_error("the ranks did not connect");
    }
    for (const Status& status : results) {
      check(status);
    }
    if (options.shared_bytes > 0) {
      connect_memory(options.shared_bytes, options.direct.hosts);
    }
    for (Node& node : nodes_) {
      node.loop->run_sync(
          [&] { node.collectives = make_backend(options.backend, *node.transport, options.direct, node.shared); });
    }
  }
  ~TcpWorld() override {
    for (Node& node : nodes_) {
      node.loop->run_sync([&] {
        node.collectives.reset();
        node.shared.reset();
        node.host.reset();
        node.transport.reset();
      });
    }
  }
  int size() const override { return static_cast<int>(nodes_.size()); }
  Collectives& at(Rank rank) override { return *nodes_[static_cast<std::size_t>(rank)].collectives; }
  PointToPoint& link(Rank rank) override { return *nodes_[static_cast<std::size_t>(rank)].transport; }
  SharedMemory* shared(Rank rank) override { return nodes_[static_cast<std::size_t>(rank)].shared.get(); }
  void on(Rank rank, Task task) override { nodes_[static_cast<std::size_t>(rank)].loop->post(std::move(task)); }
  bool wait(const std::function<bool()>& done) override { return wait_until(done); }

 private:
  struct Node {
    std::unique_ptr<rendezvous::AsioLoop> loop;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<SubgroupLink> host;  // null: all ranks are on one host
    std::shared_ptr<SharedMemory> shared;
    std::unique_ptr<Collectives> collectives;
  };
  void connect_memory(std::size_t bytes, const Hosts& hosts) {
    std::atomic<int> ended{0};
    for (Node& node : nodes_) {
      node.loop->post([&node, &ended, &hosts, bytes] {
        SharedMemorySetup setup;
        setup.bytes = bytes;
        PointToPoint* link = node.transport.get();
        if (hosts.several_with_several()) {
          node.host = local_part(*link, hosts);
          link = node.host.get();
          if (link->size() == 1) {
            ++ended;
            return;
          }
        }
        connect_shared_memory(*link, setup, [&node, &ended](Result<SharedMemoryOutcome> outcome) {
          if (outcome) {
            node.shared = std::move(outcome->memory);
          }
          ++ended;
          notify();
        });
      });
    }
    if (!wait_until([&] { return ended == size(); })) {
      throw std::runtime_error("the ranks did not connect their memory");
    }
    for (const Node& node : nodes_) {
      if (!node.shared && !(node.host && node.host->size() == 1)) {
        throw std::runtime_error("no shared memory");
      }
    }
  }
  static void check(const Status& status) {
    if (!status.ok()) {
      throw std::runtime_error(status.to_string());
    }
  }
  std::vector<Node> nodes_;
};

}  // namespace

void notify() {
  { const std::lock_guard lock(progress().mutex); }
  progress().changed.notify_all();
}

bool wait_until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::unique_lock lock(progress().mutex);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    progress().changed.wait_for(lock, std::chrono::milliseconds(2));
  }
  return true;
}

TimerId ManualLoop::after(Duration delay, Task task) {
  timers_.emplace(std::pair(now_ + delay, ++last_timer_), std::move(task));
  return TimerId(last_timer_);
}

void ManualLoop::cancel(TimerId timer) {
  std::erase_if(timers_, [timer](const auto& entry) { return entry.first.second == timer.value; });
}

bool ManualLoop::run(const std::function<bool()>& done) {
  while (!done()) {
    if (!ready_.empty()) {
      Task task = std::move(ready_.front());
      ready_.pop_front();
      task();
    } else if (!timers_.empty()) {
      auto first = timers_.extract(timers_.begin());
      now_ = first.key().first;
      first.mapped()();  // not later, when cancel() would no longer find it
    } else {
      return false;
    }
  }
  return true;
}

std::unique_ptr<World> make_local_world(int size, const WorldOptions& options) {
  return std::make_unique<LocalWorld>(size, options);
}

std::unique_ptr<World> make_tcp_world(int size, const WorldOptions& options, const std::string& host) {
  return std::make_unique<TcpWorld>(size, options, host);
}

Hosts placement(const std::string& name, int size) {
  std::vector<std::vector<Rank>> hosts(name == "hosts" || name == "hosts_shared" ? 2 : 1);
  for (Rank rank = 0; rank < size; ++rank) {
    const bool second = name == "hosts" ? rank == 1 : rank % 2 == 1;
    hosts[hosts.size() == 2 && second ? 1 : 0].push_back(rank);
  }
  std::erase_if(hosts, [](const std::vector<Rank>& host) { return host.empty(); });
  return Hosts(std::move(hosts));
}

std::unique_ptr<World> make_world(const std::string& name, int size, const WorldOptions& options) {
  const bool in_process = name == "local" || name == "hosts";
  const bool shared = name == "shared" || name == "hosts_shared";
  WorldOptions chosen = options;
  chosen.backend = in_process || shared ? "direct" : name;
  chosen.direct.hosts = placement(name, size);
  if (shared && size > 1 && chosen.shared_bytes == 0) {
    chosen.shared_bytes = std::size_t{4} * 1024 * 1024;
  }
  return in_process ? make_local_world(size, chosen) : make_tcp_world(size, chosen);
}

std::vector<Status> run_on_all(World& world, std::vector<CollectiveArgs> args) {
  const auto size = static_cast<std::size_t>(world.size());
  auto results = std::make_shared<std::vector<Status>>(size);
  auto ended = std::make_shared<std::atomic<int>>(0);
  for (Rank rank = 0; rank < world.size(); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    world.on(rank, [&world, rank, index, results, ended, mine = std::move(args[index])]() mutable {
      world.at(rank).start(std::move(mine), [index, results, ended](Status status) {
        (*results)[index] = std::move(status);
        ++*ended;
        notify();
      });
    });
  }
  if (!world.wait([&] { return *ended == world.size(); })) {
    return {};
  }
  return *results;
}

}  // namespace sirtaki::net::testing
