#include "runtime/engine/epoch/tree_node.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::engine {

using control::Bundle;
using control::RankSet;
using control::Spread;
using rendezvous::Branch;

namespace {

// Returns "10.0.0.3:5000" for "10.0.0.3:41213", and "[fd00::3]:5000" for "[fd00::3]:41213".
std::string with_port(const std::string& endpoint, std::uint16_t port) {
  return endpoint.substr(0, endpoint.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

// ---- life ----

TreeNode::TreeNode(rendezvous::AsioLoop& loop, TreeOptions options, TreeEvents events)
    : loop_(loop), options_(std::move(options)), events_(std::move(events)) {}

Result<std::unique_ptr<TreeNode>> TreeNode::open(rendezvous::AsioLoop& loop, TreeOptions options, TreeEvents events) {
  const std::vector<control::RelayPlace> tree = control::plan_tree(options.size, options.fanout);
  if (tree.empty()) {
    return std::unique_ptr<TreeNode>();
  }
  std::unique_ptr<TreeNode> node(new TreeNode(loop, std::move(options), std::move(events)));
  node->place_nodes(tree);
  if (!node->nodes_.empty()) {
    rendezvous::BranchPortOptions port = node->options_.port;
    for (const auto& carried : node->nodes_) {
      port.children += static_cast<int>(carried->children.size());
    }
    auto opened = rendezvous::BranchPort::open(loop, port, *node);
    if (!opened) {
      return opened.status().with_context("for the ranks that this one relays for");
    }
    node->port_ = std::move(*opened);
  }
  return node;
}

void TreeNode::place_nodes(const std::vector<control::RelayPlace>& tree) {
  const auto lead = [&](RelayUplink& uplink, int relay) {
    uplink.relay = relay;
    uplink.host = relay < 0 ? -1 : tree[static_cast<std::size_t>(relay)].host;
  };
  for (std::size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].host != options_.rank) {
      continue;
    }
    auto node = std::make_unique<Node>();
    node->place = static_cast<int>(i);
    node->relay = std::make_unique<control::Relay>(tree[i].below, tree[i].children, options_.relay);
    node->up.from = node.get();
    lead(node->up, tree[i].parent);
    for (const RankSet& ranks : tree[i].children) {
      Child child;
      child.ranks = ranks;
      const auto relayed = std::ranges::find_if(
          tree, [&](const auto& place) { return place.parent == static_cast<int>(i) && place.below == ranks; });
      child.host = relayed == tree.end() ? ranks.front() : relayed->host;
      node->children.push_back(std::move(child));
    }
    nodes_.push_back(std::move(node));
  }
  lead(own_, options_.rank / options_.fanout);
  for (int relay = own_.relay; relay >= 0; relay = tree[static_cast<std::size_t>(relay)].parent) {
    above_.push_back(tree[static_cast<std::size_t>(relay)].host);
  }
  for (RelayUplink* uplink : uplinks()) {
    const auto above = std::ranges::find_if(nodes_, [&](const auto& node) { return node->place == uplink->relay; });
    if (above == nodes_.end()) {
      continue;
    }
    uplink->local = above->get();
    const RankSet from = uplink->from == nullptr ? RankSet::of(options_.rank)
                                                 : tree[static_cast<std::size_t>(uplink->from->place)].below;
    const auto child =
        std::ranges::find_if(uplink->local->children, [&](const Child& c) { return c.ranks.contains(from); });
    SRT_CHECK(child != uplink->local->children.end());
    child->local = uplink;
  }
}

void TreeNode::close() {
  port_.reset();
  early_.take();
  loop_.cancel(grace_);
  for (RelayUplink* uplink : uplinks()) {
    loop_.cancel(uplink->verdict);
    uplink->branch.reset();
  }
  for (const auto& node : nodes_) {
    loop_.cancel(node->tick);
    for (Child& child : node->children) {
      loop_.cancel(child.verdict);
      child.branch.reset();
    }
  }
}

std::vector<std::string> TreeNode::endpoints(const std::vector<std::string>& data_endpoints) const {
  std::vector<std::string> endpoints;
  for (const std::string& data : data_endpoints) {
    if (port_) {
      endpoints.push_back(with_port(data, port_->port()));
    }
  }
  return endpoints;
}

std::vector<TreeNode::RelayUplink*> TreeNode::uplinks() {
  std::vector<RelayUplink*> all{&own_};
  for (const auto& node : nodes_) {
    all.push_back(&node->up);
  }
  return all;
}

// ---- connections ----

Status TreeNode::connect(const rendezvous::Membership& membership, const std::function<bool()>& interrupted) {
  loop_.run_sync([&] { begin(membership.epoch); });
  for (RelayUplink* uplink : uplinks()) {
    if (uplink->local == nullptr && uplink->relay >= 0) {
      SRT_TRY(dial(*uplink, membership, interrupted));
    }
  }
  return {};
}

Status TreeNode::dial(RelayUplink& uplink, const rendezvous::Membership& membership,
                      const std::function<bool()>& interrupted) {
  const rendezvous::Member& member = membership.members.at(static_cast<std::size_t>(uplink.host));
  const std::string who =
      "rank " + std::to_string(uplink.host) + " (host " + member.hostname + "), which relays agreements for this rank";
  if (member.relay_endpoints.empty()) {
    return Status(Code::kUnavailable, who + ", has told no address for that", {uplink.host, ""});
  }
  rendezvous::DialOptions dialing;
  dialing.addresses = member.relay_endpoints;
  dialing.who = who + ",";
  dialing.fix = "open that port between the hosts (job.port_range), or set control.fanout to 0 on all ranks";
  dialing.purpose = rendezvous::Purpose::kBranch;
  dialing.hello = encode(rendezvous::BranchHello{membership.epoch, options_.rank, uplink.relay});
  dialing.secret = options_.port.secret;
  dialing.connect_timeout = options_.connect_timeout;
  dialing.handshake_timeout = options_.port.handshake_timeout;
  dialing.silence_timeout = options_.port.silence_timeout;
  MoveFunction<bool()> cancelled = interrupted ? MoveFunction<bool()>(interrupted) : MoveFunction<bool()>();
  SRT_ASSIGN(rendezvous::Dialed dialed, rendezvous::dial(loop_, dialing, cancelled));
  Status status(Code::kShutdown, "the loop has been stopped");
  loop_.run_sync([&] {
    auto branch = Branch::adopt(loop_, std::move(dialed));
    status = branch.status();
    if (branch) {
      attach(uplink, std::move(*branch));
    }
  });
  return status;
}

void TreeNode::attach(RelayUplink& uplink, std::unique_ptr<Branch> branch) {
  uplink.branch = std::move(branch);
  for (const auto& bytes : std::exchange(uplink.early, {})) {
    send(*uplink.branch, bytes);
  }
  uplink.branch->start(*this);
}

void TreeNode::begin(Epoch epoch) {
  epoch_ = epoch;
  for (Stranger& stranger : early_.take()) {
    on_branch(stranger.hello, std::move(stranger.branch));
  }
}

// Keeps a connection until begin(): the rank at its other end has learned the epoch earlier than this one.
void TreeNode::keep_early(const rendezvous::BranchHello& hello, std::unique_ptr<Branch> branch) {
  std::size_t expected = 0;
  for (const auto& node : nodes_) {
    expected += node->children.size();
  }
  if (const auto evicted = early_.keep({hello, std::move(branch)}, expected)) {
    refused(evicted->hello, "more came than there are places, before this rank had joined");
  }
}

void TreeNode::refused(const rendezvous::BranchHello& hello, const std::string& why) const {
  events_.warning("refused a connection of rank " + std::to_string(hello.from) + " in epoch " +
                  std::to_string(hello.epoch.value) + ": " + why);
}

void TreeNode::on_branch(const rendezvous::BranchHello& hello, std::unique_ptr<Branch> branch) {
  if (!epoch_) {
    return keep_early(hello, std::move(branch));
  }
  for (const auto& node : nodes_) {
    for (Child& child : node->children) {
      if (node->place == hello.relay && child.host == hello.from && child.local == nullptr && !child.branch &&
          !child.done && hello.epoch == *epoch_) {
        child.branch = std::move(branch);
        for (const auto& bytes : std::exchange(child.early, {})) {
          send(*child.branch, bytes);
        }
        child.branch->start(*this);
        return;
      }
    }
  }
  refused(hello, "it has no place below relay " + std::to_string(hello.relay));
}

TreeNode::RelayUplink* TreeNode::uplink_of(const Branch& branch) {
  const std::vector<RelayUplink*> all = uplinks();
  const auto found =
      std::ranges::find_if(all, [&](const RelayUplink* uplink) { return uplink->branch.get() == &branch; });
  return found == all.end() ? nullptr : *found;
}

std::pair<TreeNode::Node*, TreeNode::Child*> TreeNode::child_of(const Branch& branch) {
  for (const auto& node : nodes_) {
    for (Child& child : node->children) {
      if (child.branch.get() == &branch) {
        return {node.get(), &child};
      }
    }
  }
  return {};
}

// ---- messages ----

void TreeNode::send(Branch& branch, ConstBytes bytes) {
  sent_.fetch_add(1, std::memory_order_relaxed);
  branch.send(bytes);
}

void TreeNode::say(const Bundle& bundle) {
  if (std::holds_alternative<control::Leaving>(bundle.back().message)) {
    last_word_ = bundle.back().message;
  }
  if (own_.cut) {
    return refuse(bundle);
  }
  pass_up(own_, bundle);
}

void TreeNode::pass_up(RelayUplink& uplink, const Bundle& bundle) {
  if (uplink.cut || uplink.state == RelayUplink::State::kOver) {
    return;
  }
  if (uplink.local != nullptr) {
    uplink.local->relay->on_received(bundle, loop_.now());
    return pump(*uplink.local);
  }
  for (auto& bytes : control::encode_parts(bundle)) {
    if (uplink.relay < 0) {
      events_.to_hub(std::move(bytes));
    } else if (uplink.branch) {
      send(*uplink.branch, bytes);
    } else {
      uplink.early.push_back(std::move(bytes));
    }
  }
}

void TreeNode::pass_down(Child& child, const Spread& spread) {
  if (child.local != nullptr) {
    if (child.local->from == nullptr) {
      return tell(spread);
    }
    child.local->from->relay->on_spread(spread);
    return pump(*child.local->from);
  }
  for (auto& bytes : control::encode_parts(spread)) {
    if (child.branch) {
      send(*child.branch, bytes);
    } else if (!child.done) {
      child.early.push_back(std::move(bytes));
    }
  }
}

void TreeNode::tell(const Spread& spread) {
  for (const control::TargetedMessage& told : spread) {
    if (told.ranks.contains(options_.rank)) {
      events_.told(control::encode(told.message));
    }
  }
}

void TreeNode::pump(Node& node) {
  control::Relay::Actions actions = node.relay->take_actions();
  for (const Bundle& bundle : actions.up) {
    pass_up(node.up, bundle);
  }
  for (const auto& [child, spread] : actions.down) {
    pass_down(node.children[child], spread);
  }
  loop_.cancel(std::exchange(node.tick, {}));
  if (const auto next = node.relay->next_tick()) {
    node.tick = loop_.after(*next - loop_.now(), [this, &node] {
      node.tick = {};
      node.relay->on_tick(loop_.now());
      pump(node);
    });
  }
}

void TreeNode::on_spread(ConstBytes bytes) {
  const auto spread = control::decode_spread(bytes, options_.size);
  if (!spread) {
    events_.plain(control::JobBroken{spread.status().with_context("from the coordinator")});
    return;
  }
  for (const auto& node : nodes_) {
    if (node->up.relay < 0) {
      node->relay->on_spread(*spread);
      pump(*node);
    }
  }
}

void TreeNode::on_tree(Branch& branch, ConstBytes message) {
  if (RelayUplink* uplink = uplink_of(branch)) {
    const auto spread = control::decode_spread(message, options_.size);
    if (!spread) {
      return lost_above(*uplink, spread.status());
    }
    if (uplink->from == nullptr) {
      return tell(*spread);
    }
    uplink->from->relay->on_spread(*spread);
    return pump(*uplink->from);
  }
  const auto [node, child] = child_of(branch);
  if (node == nullptr) {
    return;
  }
  auto bundle = control::decode_bundle(message, options_.size);
  if (!bundle) {
    return broken(child->host, true, bundle.status());
  }
  // A child may send messages of its own ranks only.
  for (control::SourcedMessage& said : *bundle) {
    said.ranks = said.ranks.common(child->ranks);
  }
  node->relay->on_received(std::move(*bundle), loop_.now());
  pump(*node);
}

}  // namespace sirtaki::engine
