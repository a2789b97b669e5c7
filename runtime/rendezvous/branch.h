// Branches: the connections of the tree of relays, each from a process to the one that relays for it.
//
// A BranchPort listens for those below, dial() and adopt() make the upper end's other half. A branch carries frames of
// either side (kTree) in their order and ends by a leave that the other side answers when it has taken in all before.
// Has no heartbeats: whether a process lives is the server's to say. Everything but BranchPort::open() belongs to the
// loop's thread, destructors too (or any thread, once the loop has been stopped). Knows nothing of what the frames say.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/dial.h"

namespace sirtaki::rendezvous {

// Who the lower end is, and which place in the tree it takes.
struct BranchHello {
  Epoch epoch;
  Rank from = -1;
  std::int32_t relay = -1;  // the one it is to be a child of
  bool operator==(const BranchHello&) const = default;
};
std::vector<std::byte> encode(const BranchHello& hello);
Result<BranchHello> decode_branch_hello(ConstBytes bytes);

class Branch;

// On the loop; each may destroy the branch.
class BranchHandler {
 public:
  virtual ~BranchHandler() = default;
  virtual void on_tree(Branch& branch, ConstBytes message) = 0;
  virtual void on_leave(Branch& branch) = 0;                     // nothing follows; it has been answered
  virtual void on_leave_ok(Branch& branch) = 0;                  // the other side has everything
  virtual void on_end(Branch& branch, const Status& cause) = 0;  // without a leave; once, last
};

class Branch {
 public:
  virtual ~Branch() = default;
  // Takes over a connection that dial() has made.
  static Result<std::unique_ptr<Branch>> adopt(AsioLoop& loop, Dialed dialed);

  // Frames are delivered from here on. `handler` outlives the branch.
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
  Duration silence_timeout{};  // sent bytes that nobody has acknowledged for so long end a branch
  int children = 0;
};

class BranchPort {
 public:
  // Any thread but the loop's. `handler` and `loop` outlive the port.
  static Result<std::unique_ptr<BranchPort>> open(AsioLoop& loop, BranchPortOptions options,
                                                  BranchPortHandler& handler);
  virtual ~BranchPort() = default;
  virtual std::uint16_t port() const = 0;       // any thread
  virtual std::uint64_t strangers() const = 0;  // any thread; connections refused so far
};

}  // namespace sirtaki::rendezvous
