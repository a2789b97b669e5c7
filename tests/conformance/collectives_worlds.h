// Worlds in which a group of Collectives runs in one process: one manual loop for all ranks, or a thread and real
// sockets for each. A test is written once against World.
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

// What a test waits for is looked at again after each notify(), and once in a while in any case.
void notify();
bool wait_until(const std::function<bool()>& done);  // false when it does not come true in a minute

// A loop that runs when told, with a clock of its own.
class ManualLoop final : public Loop {
 public:
  TimePoint now() const override { return now_; }
  bool in_loop() const override { return true; }
  void post(Task task) override { ready_.push_back(std::move(task)); }
  TimerId after(Duration delay, Task task) override;
  void cancel(TimerId timer) override;
  // Runs tasks and timers until `done`, or nothing is left; returns done().
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
  // Null without shared memory. Loop thread of the rank.
  virtual SharedMemory* shared(Rank) { return nullptr; }
  // Runs `task` on the rank's loop, later.
  virtual void on(Rank rank, Task task) = 0;
  // Waits until `done`, which any thread may make true; false when it does not come true.
  virtual bool wait(const std::function<bool()>& done) = 0;
};

struct WorldOptions {
  std::string backend = "direct";
  DirectOptions direct;
  LocalOptions local;          // make_local_world
  TransportOptions transport;  // make_tcp_world
  // make_tcp_world: bytes of shared memory of each rank, for those of a host; 0: everything over TCP.
  std::size_t shared_bytes = 0;
};

std::unique_ptr<World> make_local_world(int size, const WorldOptions& options = {});
// The loopback address `host`: "127.0.0.1" or "::1".
std::unique_ptr<World> make_tcp_world(int size, const WorldOptions& options = {},
                                      const std::string& host = "127.0.0.1");
// "local": direct over InprocEndpoint; "shared": direct over TCP and shared memory; "hosts" and "hosts_shared": the
// same with the ranks on several hosts as placement() has them; another name: that backend over TCP.
std::unique_ptr<World> make_world(const std::string& name, int size, const WorldOptions& options = {});
// Hosts of the ranks of such a world: uneven ones for "hosts", equal ones, as far as they can be, for "hosts_shared".
Hosts placement(const std::string& name, int size);

// Starts one operation on all ranks and waits for it: the status of each rank, or none when it did not end.
std::vector<Status> run_on_all(World& world, std::vector<CollectiveArgs> args);

}  // namespace sirtaki::net::testing
