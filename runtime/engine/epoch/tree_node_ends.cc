// TreeNode, part: orderly departures, and connections that end without one.
#include <algorithm>
#include <utility>

#include "runtime/engine/epoch/tree_node.h"

namespace sirtaki::engine {

using control::Bundle;
using rendezvous::Branch;

namespace {

// Returns true for messages that a rank may lose after its uplink is cut.
bool needs_no_answer(const control::MemberMessage& message) {
  return std::holds_alternative<control::Leaving>(message) || std::holds_alternative<control::StreamClose>(message) ||
         std::holds_alternative<control::Waiting>(message);
}

Status broken_status(Rank below, Rank above, Rank blamed, const Status& cause) {
  return {
      cause.code(),
      "the connection over which the agreements of rank " + std::to_string(below) + " go to rank " +
          std::to_string(above) + " is lost, though both ranks live: " + std::string(cause.text()) +
          ". Likely cause: a firewall, a router or a network between their hosts that drops connections; fix: "
          "repair that path, or set control.fanout to 0 on all ranks, so that each speaks to the coordinator itself",
      {blamed, ""}};
}

}  // namespace

// ---- lost connections ----

void TreeNode::broken(Rank peer, bool below, const Status& cause) {
  if (over_ || leaving_) {
    return;
  }
  abandon();
  const Rank self = options_.rank;
  events_.plain(control::JobBroken{broken_status(below ? peer : self, below ? self : peer, peer, cause)});
}

// A rank that is leaving needs no uplink itself; only the ranks below must learn that they can agree on nothing new.
void TreeNode::lost_above(RelayUplink& uplink, const Status& cause) {
  if (leaving_ && !over_) {
    uplink.branch.reset();
    return cut(uplink);
  }
  broken(uplink.host, false, cause);
}

void TreeNode::abandon() {
  over_ = true;
  if (leaving_) {
    end_now();
  }
}

// Waits for the coordinator, which knows the cause of a connection that ends: usually the rank at its end is lost.
void TreeNode::on_end(Branch& branch, const Status& cause) {
  if (RelayUplink* uplink = uplink_of(branch)) {
    uplink->branch.reset();
    if (uplink->state == RelayUplink::State::kLeaving || left_.contains(uplink->host)) {
      return cut(*uplink);
    }
    uplink->verdict = loop_.after(options_.verdict_timeout, [this, uplink, cause] { lost_above(*uplink, cause); });
    return;
  }
  const auto [node, child] = child_of(branch);
  if (node == nullptr) {
    return;
  }
  child->branch.reset();
  if (leaving_ || left_.contains(child->host)) {
    return child_done(*node, *child);
  }
  child->verdict =
      loop_.after(options_.verdict_timeout, [this, host = child->host, cause] { broken(host, true, cause); });
}

// ---- departures of others ----

void TreeNode::on_left(Rank rank) {
  left_.add(rank);
  if (own_.cut) {
    events_.left(rank);
  }
  for (const auto& node : nodes_) {
    node->relay->on_gone(rank, loop_.now());
    pump(*node);
    for (Child& child : node->children) {
      if (child.host == rank && child.local == nullptr && !child.branch && !child.done) {
        loop_.cancel(child.verdict);
        child_done(*node, child);
      }
    }
  }
  for (RelayUplink* uplink : uplinks()) {
    if (uplink->host == rank && uplink->local == nullptr && !uplink->branch &&
        uplink->state == RelayUplink::State::kOpen) {
      loop_.cancel(uplink->verdict);
      cut(*uplink);
    }
  }
}

void TreeNode::on_leave(Branch& branch) {
  if (RelayUplink* uplink = uplink_of(branch)) {
    uplink->branch.reset();
    return cut(*uplink);
  }
  if (const auto [node, child] = child_of(branch); node != nullptr) {
    child->branch.reset();
    child_done(*node, *child);
  }
}

void TreeNode::on_leave_ok(Branch& branch) {
  if (RelayUplink* uplink = uplink_of(branch)) {
    uplink->branch.reset();
    return finish_leave(*uplink);
  }
  if (const auto [node, child] = child_of(branch); node != nullptr) {
    child->branch.reset();
    child->done = true;
  }
}

Status TreeNode::cut_status() const {
  // The rank that has left may be further up than the next one.
  const auto gone = std::ranges::find_if(above_, [this](Rank host) { return left_.contains(host); });
  const Rank rank = gone == above_.end() ? above_.front() : *gone;
  const std::string above = "rank " + std::to_string(rank);
  return {Code::kPeerLost,
          above +
              ", over which this rank speaks to the coordinator, has shut down, so nothing new can be agreed on. "
              "Likely cause: it ended its work, or failed, while this rank still had steps to do; give all ranks "
              "the same number of steps, or call join() behind the last one",
          {rank, ""}};
}

// Handles the orderly departure of the relay above, after which ranks below have no path to the coordinator.
void TreeNode::cut(RelayUplink& uplink) {
  if (uplink.state == RelayUplink::State::kOver) {
    return;
  }
  uplink.cut = true;
  if (uplink.from == nullptr) {
    if (!leaving_ && !over_) {
      events_.cut(cut_status(), false);
      for (const Rank rank : left_.ranks()) {
        events_.left(rank);
      }
    }
  } else {
    uplink.from->done = true;
    for (Child& child : uplink.from->children) {
      if (child.local != nullptr) {
        cut(*child.local);
      } else if (child.branch) {
        child.branch->leave();
      }
    }
  }
  finish_leave(uplink);
}

void TreeNode::refuse(const Bundle& bundle) {
  const bool harmless = std::ranges::all_of(bundle, [](const auto& said) { return needs_no_answer(said.message); });
  if (!harmless && !leaving_ && !over_) {
    events_.cut(cut_status(), true);
  }
}

// ---- this rank's own departure ----

void TreeNode::leave(Duration grace, std::function<void()> done) {
  leaving_ = true;
  left_done_ = std::move(done);
  if (over_ || !epoch_) {
    return end_now();
  }
  if (!last_word_) {
    say({{control::RankSet::of(options_.rank),
          control::Leaving{}}});  // the session ends before its engine could send it
  }
  grace_ = loop_.after(grace, [this] { run_out(); });
  for (const auto& node : nodes_) {
    node->relay->on_gone(options_.rank, loop_.now());
    pump(*node);
  }
  leave(own_);
}

void TreeNode::leave(RelayUplink& uplink) {
  if (uplink.state != RelayUplink::State::kOpen) {
    return check_left();
  }
  if (uplink.local != nullptr) {
    uplink.state = RelayUplink::State::kOver;
    const auto child = std::ranges::find_if(uplink.local->children, [&](const Child& c) { return c.local == &uplink; });
    child_done(*uplink.local, *child);
    check_left();
  } else if (uplink.branch) {
    uplink.state = RelayUplink::State::kLeaving;
    uplink.branch->leave();
  } else {
    uplink.cut = uplink.relay >= 0;
    finish_leave(uplink);
  }
}

void TreeNode::finish_leave(RelayUplink& uplink) {
  uplink.state = RelayUplink::State::kOver;
  check_left();
}

void TreeNode::child_done(Node& node, Child& child) {
  child.done = true;
  const bool all = std::ranges::all_of(node.children, [](const Child& c) { return c.done; });
  if (node.done || !all) {
    return;
  }
  node.relay->flush();
  pump(node);
  node.done = true;
  leave(node.up);
}

void TreeNode::check_left() {
  const bool all = std::ranges::all_of(
      nodes_, [](const auto& node) { return node->done && node->up.state == RelayUplink::State::kOver; });
  if (leaving_ && all && own_.state == RelayUplink::State::kOver) {
    end_now();
  }
}

// Ends at the limit of leave() although ranks below still work. Their uplink is cut from now on, which is an error only
// if they have to agree on something.
void TreeNode::run_out() {
  for (const auto& node : nodes_) {
    node->relay->flush();
    pump(*node);
    for (const Child& child : node->children) {
      if (child.branch) {
        child.branch->leave();
      }
    }
    if (node->up.branch) {
      node->up.branch->leave();
    }
  }
  own_.cut = own_.cut || own_.state == RelayUplink::State::kLeaving;
  end_now();
}

void TreeNode::end_now() {
  loop_.cancel(grace_);
  // A cut uplink may have lost the message, so it goes over the own connection of this rank as well.
  if (own_.cut && last_word_ && !over_) {
    events_.plain(*last_word_);
  }
  if (const auto done = std::exchange(left_done_, {})) {
    done();
  }
}

}  // namespace sirtaki::engine
