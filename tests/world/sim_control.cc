#include "tests/world/sim_control.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::world {
namespace {

// from the notice of a leave to the end of its connections
constexpr Duration kGoodBye = std::chrono::milliseconds(100);
constexpr Duration kLeaveLinger = std::chrono::milliseconds(20);  // same as in the server
constexpr Duration kLastWordWait = std::chrono::seconds(5);
constexpr std::size_t kNoticeBytes = 64;

}  // namespace

SimControl::SimControl(SimClock& clock, ControlOptions options, std::function<Duration(std::size_t)> delay,
                       std::function<void(Rank)> left)
    : clock_(clock),
      options_(options),
      delay_(std::move(delay)),
      left_(std::move(left)),
      coordinator_loop_(clock.make_loop()),
      coordinator_(options.size, options.stall,
                   control::plan_tree(options.size, options.fanout).empty() ? Duration() : kLastWordWait,
                   options.coordinator) {
  for (int i = 0; i <= options_.size; ++i) {
    processes_.push_back(std::make_unique<Process>());
  }
  processes_.back()->loop = coordinator_loop_.get();
  for (control::RelayPlace& place : control::plan_tree(options_.size, options_.fanout)) {
    const std::size_t at = relays_.size();
    processes_[static_cast<std::size_t>(place.host)]->relays.push_back(at);
    relays_.push_back({place, std::make_unique<control::Relay>(place.below, place.children), {}, {}});
  }
  for (std::size_t i = 0; i < relays_.size(); ++i) {
    if (const int parent = relays_[i].place.parent; parent >= 0) {
      relays_[static_cast<std::size_t>(parent)].below.push_back(i);
    }
  }
}

SimControl::~SimControl() {
  coordinator_loop_->kill();
}

void SimControl::attach(Rank rank, SimLoop& loop, ControlEvents events) {
  Process& process = *processes_[static_cast<std::size_t>(rank)];
  process.loop = &loop;
  process.events = std::move(events);
}

void SimControl::start() {
  if (options_.heartbeat_interval > Duration(0)) {
    coordinator_loop_->after(options_.heartbeat_interval, [this] { beat(); });
  }
}

// ---- connections ----

Duration SimControl::in_order(Place from, Place to, Duration delay) {
  TimePoint& last = last_arrival_[{from, to}];
  last = std::max(last, clock_.now() + delay);
  return last - clock_.now();
}

void SimControl::transmit(Place from, Place to, Parcel parcel, Task deliver) {
  Process& source = *processes_[from];
  Process& target = *processes_[to];
  if (from == to) {
    target.loop->post(std::move(deliver));
    return;
  }
  messages_ += parcel.membership ? 0 : 1;
  ++source.traffic.sent;
  source.traffic.bytes_sent += parcel.bytes;
  const Duration departs = occupy(source, parcel, options_.send_cost);
  const Duration arrives = in_order(from, to, departs + delay_(parcel.bytes));
  target.loop->after(arrives, [this, &target, parcel, deliver = std::move(deliver)]() mutable {
    ++target.traffic.received;
    target.traffic.bytes_received += parcel.bytes;
    const Duration cost = options_.receive_cost + options_.item_cost * static_cast<std::int64_t>(parcel.items - 1);
    const Duration handled = occupy(target, parcel, cost);
    if (cost == Duration(0)) {
      deliver();
    } else {
      target.loop->after(handled, std::move(deliver));
    }
  });
}

// Appends work of `cost` to the queue of the process; returns the time from now until it is done.
Duration SimControl::occupy(Process& process, const Parcel& parcel, Duration cost) {
  process.traffic.membership += parcel.membership ? 1 : 0;
  process.traffic.busy += cost;
  process.free = std::max(process.free, clock_.now()) + cost;
  return process.free - clock_.now();
}

// ---- up ----

void SimControl::send(Rank from, const control::MemberMessage& message) {
  const auto place = static_cast<Place>(from);
  control::SourcedMessage sourced{control::RankSet::of(from), message};
  if (relays_.empty()) {
    to_coordinator(place, {std::move(sourced)});
    return;
  }
  // All messages of a rank in one turn of its loop travel as one bundle.
  Process& process = *processes_[place];
  if (process.outbox.empty()) {
    process.loop->post([this, place, &process] {
      to_relay(place, place / static_cast<std::size_t>(options_.fanout), std::exchange(process.outbox, {}));
    });
  }
  process.outbox.push_back(std::move(sourced));
}

void SimControl::to_coordinator(Place from, control::Bundle bundle) {
  const std::vector<std::byte> bytes = control::encode(bundle);
  transmit(from, coordinator_place(), {bytes.size(), bundle.size()}, [this, bytes] {
    const auto received = control::decode_bundle(bytes, options_.size);
    SRT_CHECK(received.ok());
    for (const control::SourcedMessage& item : *received) {
      coordinator_.on_received(item.ranks, item.message, clock_.now());
    }
    act();
  });
}

void SimControl::to_relay(Place from, std::size_t relay, control::Bundle bundle) {
  const auto host = static_cast<Place>(relays_[relay].place.host);
  const std::vector<std::byte> bytes = control::encode(bundle);
  transmit(from, host, {bytes.size(), bundle.size()}, [this, relay, bytes] {
    auto received = control::decode_bundle(bytes, options_.size);
    SRT_CHECK(received.ok());
    relays_[relay].relay->on_received(std::move(*received), clock_.now());
    pump(relay);
  });
}

void SimControl::pump(std::size_t index) {
  RelayNode& node = relays_[index];
  const auto host = static_cast<Place>(node.place.host);
  control::Relay::Actions actions = node.relay->take_actions();
  for (control::Bundle& bundle : actions.up) {
    if (node.place.parent < 0) {
      to_coordinator(host, std::move(bundle));
    } else {
      to_relay(host, static_cast<std::size_t>(node.place.parent), std::move(bundle));
    }
  }
  for (const auto& [child, spread] : actions.down) {
    if (node.below.empty()) {
      to_member(host, node.place.children[child].front(), spread);
    } else {
      to_relay(host, node.below[child], spread);
    }
  }
  SimLoop& loop = *processes_[host]->loop;
  loop.cancel(std::exchange(node.tick, {}));
  if (const auto next = node.relay->next_tick()) {
    node.tick = loop.after(*next - clock_.now(), [this, index] {
      relays_[index].tick = {};
      relays_[index].relay->on_tick(clock_.now());
      pump(index);
    });
  }
}

// ---- down ----

void SimControl::to_relay(Place from, std::size_t relay, const control::Spread& spread) {
  const auto host = static_cast<Place>(relays_[relay].place.host);
  const std::vector<std::byte> bytes = control::encode(spread);
  transmit(from, host, {bytes.size(), spread.size()}, [this, relay, bytes] {
    const auto received = control::decode_spread(bytes, options_.size);
    SRT_CHECK(received.ok());
    relays_[relay].relay->on_spread(*received);
    pump(relay);
  });
}

void SimControl::to_member(Place from, Rank to, const control::Spread& spread) {
  const std::vector<std::byte> bytes = control::encode(spread);
  transmit(from, static_cast<Place>(to), {bytes.size(), spread.size()}, [this, to, bytes] {
    const auto received = control::decode_spread(bytes, options_.size);
    SRT_CHECK(received.ok());
    for (const control::TargetedMessage& item : *received) {
      processes_[static_cast<std::size_t>(to)]->events.message(control::encode(item.message));
    }
  });
}

void SimControl::act() {
  control::Coordinator::Actions actions = coordinator_.take_actions();
  control::Spread spread;
  for (control::Coordinator::Send& action : actions.sends) {
    if (relays_.empty()) {
      const control::Spread single{{action.to, std::move(action.message)}};
      for (const Rank r : action.to.ranks()) {
        to_member(coordinator_place(), r, single);
      }
    } else {
      spread.push_back({std::move(action.to), std::move(action.message)});
    }
  }
  for (std::size_t i = 0; !spread.empty() && i < relays_.size(); ++i) {
    if (relays_[i].place.parent >= 0) {
      continue;
    }
    control::Spread part;
    for (const control::TargetedMessage& item : spread) {
      if (control::RankSet ranks = item.ranks.common(relays_[i].place.below); !ranks.empty()) {
        part.push_back({std::move(ranks), item.message});
      }
    }
    if (!part.empty()) {
      to_relay(coordinator_place(), i, part);
    }
  }
  warnings_.insert(warnings_.end(), actions.warnings.begin(), actions.warnings.end());
  schedule_tick();
}

void SimControl::schedule_tick() {
  coordinator_loop_->cancel(std::exchange(tick_, {}));
  if (const auto next = coordinator_.next_tick()) {
    tick_ = coordinator_loop_->after(*next - clock_.now(), [this] {
      tick_ = {};
      coordinator_.on_tick(clock_.now());
      act();
    });
  }
}

// ---- membership: every rank's own connection to the coordinator ----

void SimControl::leave(Rank rank) {
  transmit(static_cast<Place>(rank), coordinator_place(), {kNoticeBytes, 1, true}, [this, rank] {
    processes_[static_cast<std::size_t>(rank)]->left = true;
    // Its connections send the good-bye after all earlier messages.
    coordinator_loop_->after(kGoodBye, [this, rank] { left_(rank); });
    departed_.push_back(rank);
    if (departed_.size() == 1) {
      coordinator_loop_->after(kLeaveLinger, [this] { tell_departures(); });
    }
  });
}

void SimControl::tell_departures() {
  const std::vector<Rank> departed = std::exchange(departed_, {});
  if (departed.empty()) {
    return;
  }
  for (const Rank rank : departed) {
    coordinator_.on_left(rank, clock_.now());
  }
  announce(departed, false);
}

void SimControl::die(Rank rank) {
  processes_[static_cast<std::size_t>(rank)]->gone = true;
  coordinator_loop_->after(options_.death_notice, [this, rank] {
    tell_departures();
    coordinator_.on_lost(rank);
    announce({rank}, true);
  });
}

void SimControl::announce(const std::vector<Rank>& ranks, bool lost) {
  act();
  for (Place place = 0; place < coordinator_place(); ++place) {
    Process& process = *processes_[place];
    // A relay serves the ranks below it even after its own rank has left in order.
    if (process.gone || (process.left && process.relays.empty())) {
      continue;
    }
    transmit(coordinator_place(), place, {kNoticeBytes, ranks.size(), true}, [this, &process, ranks, lost] {
      for (const Rank rank : ranks) {
        if (!process.left && (lost || relays_.empty())) {  // a tree announces a leave by RanksLeft
          process.events.gone(rank, lost);
        }
        for (const std::size_t relay : process.relays) {
          relays_[relay].relay->on_gone(rank, clock_.now());
        }
      }
      for (const std::size_t relay : process.relays) {
        pump(relay);
      }
    });
  }
}

void SimControl::beat() {
  for (Place place = 0; place < coordinator_place(); ++place) {
    if (!processes_[place]->gone) {
      transmit(coordinator_place(), place, {kNoticeBytes, 1, true}, [this, place] {
        transmit(place, coordinator_place(), {kNoticeBytes, 1, true}, [] {});
      });
    }
  }
  coordinator_loop_->after(options_.heartbeat_interval, [this] { beat(); });
}

}  // namespace sirtaki::world
