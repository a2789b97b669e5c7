// Worlds that run a group of Collectives in one process: one manual loop for all ranks, or a thread and real sockets
// for each. A test is written once against World.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/collectives/direct.h"
#include "runtime/net/link/hosts.h"
#include "runtime/net/link/inproc_link.h"
#include "runtime/net/shm/shared_memory.h"
#include "runtime/net/tcp/transport.h"

namespace sirtaki::net::testing {

inline constexpr std::size_t kMiB = std::size_t{1024} * 1024;

// Wakes wait_until(): conditions are checked after each notify(), and periodically in any case.
void notify();
bool wait_until(const std::function<bool()>& done);  // returns false after a minute

// A loop that runs on request, with a clock of its own.
class ManualLoop final : public Loop {
 public:
  TimePoint now() const override { return now_; }
  bool in_loop() const override { return true; }
  void post(Task task) override { ready_.push_back(std::move(task)); }
  TimerId after(Duration delay, Task task) override;
  void cancel(TimerId timer) override;
  // Runs tasks and timers until done() is true or none is left; returns done().
  bool run(const std::function<bool()>& done);

 private:
  TimePoint now_{};
  std::deque<Task> ready_;
  std::map<std::pair<TimePoint, std::uint64_t>, Task> timers_;
  std::uint64_t last_timer_ = 0;
};

class World {
 public:
  virtual ~World() = default;
  virtual int size() const = 0;
  virtual Collectives& at(Rank rank) = 0;
  virtual PointToPoint& link(Rank rank) = 0;
  // Returns null without shared memory. Call it on the loop thread of the rank.
  virtual SharedMemory* shared(Rank) { return nullptr; }
  // Posts `task` to the loop of the rank.
  virtual void on(Rank rank, Task task) = 0;
  // Waits until done() is true, which any thread may cause; returns false if that cannot happen any more.
  virtual bool wait(const std::function<bool()>& done) = 0;
};

struct WorldOptions {
  std::string backend = "direct";
  DirectOptions direct;
  LocalOptions local;          // used by make_local_world
  TransportOptions transport;  // used by make_tcp_world
  // Used by make_tcp_world: bytes of shared memory of each rank, for ranks of one host; 0: all messages over TCP.
  std::size_t shared_bytes = 0;
};

std::unique_ptr<World> make_local_world(int size, const WorldOptions& options = {});
// Ranks connect over the loopback address `host`: "127.0.0.1" or "::1".
std::unique_ptr<World> make_tcp_world(int size, const WorldOptions& options = {},
                                      const std::string& host = "127.0.0.1");
// Names: "local": direct over InprocEndpoint; "shared": direct over TCP and shared memory; "hosts" and "hosts_shared":
// the same with the ranks on several hosts, see placement(); any other name: that backend over TCP.
std::unique_ptr<World> make_world(const std::string& name, int size, const WorldOptions& options = {});
// Returns the hosts of the ranks of such a world: uneven ones for "hosts", nearly equal ones for "hosts_shared".
Hosts placement(const std::string& name, int size);

// Runs one operation on all ranks; returns the status of each rank, or an empty list if the operation did not end.
std::vector<Status> run_on_all(World& world, std::vector<CollectiveArgs> args);

}  // namespace sirtaki::net::testing
