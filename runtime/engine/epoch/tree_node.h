// TreeNode: the part of one rank in the tree of relays: the uplink of its own agreement messages, and the relays that
// it runs.
//
// Owned by ControlPlane, in jobs with more ranks than the fan-out. Threads: the control loop; open(), endpoints() and
// connect() run on the thread that opens the session. Not for heartbeats and membership: the owner reports departures.
// If a connection of the tree ends while the rank at its other end lives, the job ends with an error. A rank with a
// relay may leave in order; that is an error only if a rank below it still has to agree on something.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/bundle.h"
#include "runtime/control/relay.h"
#include "runtime/control/tree.h"
#include "runtime/rendezvous/branch.h"
#include "runtime/rendezvous/link/early.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::engine {

struct TreeOptions {
  Rank rank = 0;
  int size = 1;
  int fanout = 0;
  control::RelayOptions relay;  // options of the relays that this rank runs
  rendezvous::BranchPortOptions port;
  Duration connect_timeout{};
  Duration verdict_timeout{};  // limit for the coordinator to report the fate of a rank whose connection ended
};

// Callbacks on the control loop. They may be called inside methods of the node and must not call it back.
struct TreeEvents {
  std::function<void(ConstBytes)> told;                      // a message of the coordinator for this rank
  std::function<void(std::vector<std::byte>)> to_hub;        // a bundle for the coordinator
  std::function<void(const control::MemberMessage&)> plain;  // a message of this rank, past the tree
  // The relay above has left, so this rank can agree on nothing new. `needed`: this rank has just tried to.
  std::function<void(const Status&, bool needed)> cut;
  std::function<void(Rank)> left;  // a rank has left, and the tree no longer reports that to this rank
  std::function<void(const std::string&)> warning;
};

class TreeNode final : private rendezvous::BranchPortHandler, private rendezvous::BranchHandler {
 public:
  // Returns null if every rank of such a job has its own connection to the coordinator. Opens a port if this rank runs
  // a relay.
  static Result<std::unique_ptr<TreeNode>> open(rendezvous::AsioLoop& loop, TreeOptions options, TreeEvents events);
  ~TreeNode() override { close(); }

  // Returns the addresses for the children of this rank, which are those of its data port; empty if it runs no relay.
  std::vector<std::string> endpoints(const std::vector<std::string>& data_endpoints) const;
  // Connects to the relays above, within connect_timeout each.
  Status connect(const rendezvous::Membership& membership, const std::function<bool()>& interrupted);

  void say(const control::Bundle& bundle);  // sends messages of this rank
  void on_spread(ConstBytes bytes);         // handles a spread from the coordinator
  void on_left(Rank rank);                  // handles an orderly departure
  void abandon();                           // ignores the ends of connections from now on, since the job is over
  // Leaves the tree, with an empty Leaving message if say() has sent none. Goes on relaying until all ranks below have
  // left, for at most `grace`; then calls `done`.
  void leave(Duration grace, std::function<void()> done);

  void close();  // ends all connections; call this last

  // Returns the number of messages sent on connections of the tree. Any thread.
  std::uint64_t messages_sent() const { return sent_.load(std::memory_order_relaxed); }

 private:
  struct Node;
  // The connection of this rank, or of a relay that it runs, to the relay above.
  struct RelayUplink {
    enum class State { kOpen, kLeaving, kOver };
    Node* from = nullptr;  // null: this rank itself
    int relay = -1;        // -1: the coordinator
    Rank host = -1;
    Node* local = nullptr;  // the relay above, if it runs in this process
    State state = State::kOpen;
    bool cut = false;
    std::unique_ptr<rendezvous::Branch> branch;
    std::vector<std::vector<std::byte>> early;  // sent before the connection was open
    TimerId verdict;
  };
  struct Child {
    control::RankSet ranks;
    Rank host = -1;
    RelayUplink* local = nullptr;
    bool done = false;
    std::unique_ptr<rendezvous::Branch> branch;
    std::vector<std::vector<std::byte>> early;  // sent before the connection was open
    TimerId verdict;
  };
  struct Node {
    int place = 0;
    std::unique_ptr<control::Relay> relay;
    std::vector<Child> children;
    RelayUplink up;
    TimerId tick;
    bool done = false;
  };
  struct Stranger {
    rendezvous::BranchHello hello;
    std::unique_ptr<rendezvous::Branch> branch;
  };

  TreeNode(rendezvous::AsioLoop& loop, TreeOptions options, TreeEvents events);
  void place_nodes(const std::vector<control::RelayPlace>& tree);

  void on_branch(const rendezvous::BranchHello& hello, std::unique_ptr<rendezvous::Branch> branch) override;
  void on_branch_warning(const std::string& line) override { events_.warning(line); }
  void on_tree(rendezvous::Branch& branch, ConstBytes message) override;
  void on_leave(rendezvous::Branch& branch) override;
  void on_leave_ok(rendezvous::Branch& branch) override;
  void on_end(rendezvous::Branch& branch, const Status& cause) override;

  // tree_node.cc: connections and messages
  void begin(Epoch epoch);
  void keep_early(const rendezvous::BranchHello& hello, std::unique_ptr<rendezvous::Branch> branch);
  void refused(const rendezvous::BranchHello& hello, const std::string& why) const;
  Status dial(RelayUplink& uplink, const rendezvous::Membership& membership, const std::function<bool()>& interrupted);
  void attach(RelayUplink& uplink, std::unique_ptr<rendezvous::Branch> branch);
  RelayUplink* uplink_of(const rendezvous::Branch& branch);
  std::pair<Node*, Child*> child_of(const rendezvous::Branch& branch);
  std::vector<RelayUplink*> uplinks();
  void pass_up(RelayUplink& uplink, const control::Bundle& bundle);
  void pass_down(Child& child, const control::Spread& spread);
  void tell(const control::Spread& spread);
  void pump(Node& node);
  void send(rendezvous::Branch& branch, ConstBytes bytes);

  // tree_node_ends.cc: departures and lost connections
  void refuse(const control::Bundle& bundle);
  void cut(RelayUplink& uplink);
  void leave(RelayUplink& uplink);
  void finish_leave(RelayUplink& uplink);
  void child_done(Node& node, Child& child);
  void check_left();
  void run_out();
  void end_now();
  void lost_above(RelayUplink& uplink, const Status& cause);
  void broken(Rank peer, bool below, const Status& cause);
  Status cut_status() const;

  rendezvous::AsioLoop& loop_;
  const TreeOptions options_;
  const TreeEvents events_;
  std::unique_ptr<rendezvous::BranchPort> port_;
  std::vector<Rank> above_;  // hosts of the relays from this rank up to the coordinator
  RelayUplink own_;
  std::vector<std::unique_ptr<Node>> nodes_;  // lowest first
  std::optional<Epoch> epoch_;
  rendezvous::Early<Stranger> early_;  // connections that arrived before the epoch was known
  control::RankSet left_;
  std::optional<control::MemberMessage> last_word_;
  bool over_ = false;
  bool leaving_ = false;
  TimerId grace_;
  std::function<void()> left_done_;
  std::atomic<std::uint64_t> sent_{0};
};

}  // namespace sirtaki::engine
