// TreeNode: one rank's part of the tree of relays: the way of its own agreement messages, and the relays it carries.
//
// Owned by: ControlPlane, in jobs with more ranks than the fan-out. Lives on the control loop; open(), endpoints() and
// connect() belong to the program's thread. Heartbeats and membership are not its business: its owner tells it who has
// gone. A connection of the tree that ends while the rank at its other end lives is an error of the job; a relay whose
// rank has left in order is none, as long as nobody below it still has something to agree on.
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
  control::RelayOptions relay;  // of those this rank carries
  rendezvous::BranchPortOptions port;
  Duration connect_timeout{};
  Duration verdict_timeout{};  // how long a connection may be gone before the hub says what became of its rank
};

// Called on the control loop, which may not be inside the node then.
struct TreeEvents {
  std::function<void(ConstBytes)> told;                      // a message of the coordinator to this rank
  std::function<void(std::vector<std::byte>)> to_hub;        // a bundle
  std::function<void(const control::MemberMessage&)> plain;  // to the hub, of this rank alone
  // The relay above has left. Nothing can be agreed on any more; `needed`: this rank just tried to.
  std::function<void(const Status&, bool needed)> cut;
  std::function<void(Rank)> left;  // told by the hub, and nothing comes down to this rank any more that might say so
  std::function<void(const std::string&)> warning;
};

class TreeNode final : private rendezvous::BranchPortHandler, private rendezvous::BranchHandler {
 public:
  // nullptr: every rank of such a job speaks to the hub itself. Opens a port where this rank carries a relay.
  static Result<std::unique_ptr<TreeNode>> open(rendezvous::AsioLoop& loop, TreeOptions options, TreeEvents events);
  ~TreeNode() override { close(); }

  // Where this rank's children reach it, at the addresses of its data port. Empty: it carries no relay.
  std::vector<std::string> endpoints(const std::vector<std::string>& data_endpoints) const;
  // Dials the relays above; within connect_timeout each.
  Status connect(const rendezvous::Membership& membership, const std::function<bool()>& interrupted);

  void say(const control::Bundle& bundle);  // of this rank
  void on_spread(ConstBytes bytes);         // from the hub
  void on_left(Rank rank);
  void abandon();  // the job is over: ends of connections are no news any more
  // This rank leaves; an empty last word is said for it when it said none. Relays on until all below are done, at most
  // `grace`; then `done`.
  void leave(Duration grace, std::function<void()> done);

  void close();  // ends all connections; the last

  // Those on connections of the tree; any thread.
  std::uint64_t messages_sent() const { return sent_.load(std::memory_order_relaxed); }

 private:
  struct Node;
  // From this rank, or from a relay it carries, to the relay above.
  struct RelayUplink {
    enum class State { kOpen, kLeaving, kOver };
    Node* from = nullptr;  // null: this rank itself
    int relay = -1;        // -1: the hub
    Rank host = -1;
    Node* local = nullptr;  // the relay above is in this process, too
    State state = State::kOpen;
    bool cut = false;
    std::unique_ptr<rendezvous::Branch> branch;
    std::vector<std::vector<std::byte>> early;  // said before the connection stood
    TimerId verdict;
  };
  struct Child {
    control::RankSet ranks;
    Rank host = -1;
    RelayUplink* local = nullptr;
    bool done = false;
    std::unique_ptr<rendezvous::Branch> branch;
    std::vector<std::vector<std::byte>> early;  // told before the connection stood
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
  std::vector<Rank> above_;  // who carries the relays from this rank up to the hub
  RelayUplink own_;
  std::vector<std::unique_ptr<Node>> nodes_;  // lowest first
  std::optional<Epoch> epoch_;
  rendezvous::Early<Stranger> early_;  // came before the epoch was known
  control::RankSet left_;
  std::optional<control::MemberMessage> last_word_;
  bool over_ = false;
  bool leaving_ = false;
  TimerId grace_;
  std::function<void()> left_done_;
  std::atomic<std::uint64_t> sent_{0};
};

}  // namespace sirtaki::engine
