// Branches: the connections of the relay tree, each from a process to the process that relays for it.
//
// The upper end accepts branches at a BranchPort; the lower end connects with dial() and Branch::adopt(). A branch
// carries kTree frames in order, both ways, without reading them. A branch ends with a leave, which the other side
// answers after it has received every earlier frame. Branches have no heartbeats, because the server detects dead
// processes.
//
// Threads: everything except BranchPort::open() runs on the loop thread, destructors too (on any thread once the loop
// has stopped).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/dial.h"

namespace sirtaki::rendezvous {

// Identifies the lower end and its place in the tree.
struct BranchHello {
  Epoch epoch;
  Rank from = -1;
  std::int32_t relay = -1;  // the relay whose child it becomes
  bool operator==(const BranchHello&) const = default;
};
std::vector<std::byte> encode(const BranchHello& hello);
Result<BranchHello> decode_branch_hello(ConstBytes bytes);

class Branch;

// Called on the loop thread; every callback may destroy the branch.
class BranchHandler {
 public:
  virtual ~BranchHandler() = default;
  virtual void on_tree(Branch& branch, ConstBytes message) = 0;
  virtual void on_leave(Branch& branch) = 0;     // the other side leaves; it gets the answer, and no frame follows
  virtual void on_leave_ok(Branch& branch) = 0;  // the answer to leave(): the other side has received every frame
  virtual void on_end(Branch& branch, const Status& cause) = 0;  // ended without a leave; called at most once, last
};

class Branch {
 public:
  virtual ~Branch() = default;
  // Makes a branch of a connection that dial() has opened.
  static Result<std::unique_ptr<Branch>> adopt(AsioLoop& loop, Dialed dialed);

  // Starts to deliver frames. `handler` outlives the branch.
  virtual void start(BranchHandler& handler) = 0;
  virtual void send(ConstBytes message) = 0;  // at most kMaxTree bytes (frame.h)
  virtual void leave() = 0;
};

class BranchPortHandler {
 public:
  virtual ~BranchPortHandler() = default;
  virtual void on_branch(const BranchHello& hello, std::unique_ptr<Branch> branch) = 0;
  virtual void on_branch_warning(const std::string& line) = 0;
};

struct BranchPortOptions {
  std::string bind_address;
  std::uint16_t port_first = 0;  // 0: any free port; else the first free one in [port_first, port_last]
  std::uint16_t port_last = 0;
  Secret secret;
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration silence_timeout{};  // a branch ends if sent bytes stay unacknowledged for so long
  int children = 0;
};

class BranchPort {
 public:
  // Opens the port. `handler` and `loop` outlive the port. Any thread but the loop thread.
  static Result<std::unique_ptr<BranchPort>> open(AsioLoop& loop, BranchPortOptions options,
                                                  BranchPortHandler& handler);
  virtual ~BranchPort() = default;
  virtual std::uint16_t port() const = 0;       // any thread
  virtual std::uint64_t strangers() const = 0;  // any thread; connections refused so far
};

}  // namespace sirtaki::rendezvous
