#include "tests/world/elastic/sim_job.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace sirtaki::world {
namespace {

// Bounds of V6, from the last fault to the next step that counts. A recovery takes some thousand events, and in virtual
// time the linger of the hub (20 ms), the notice of the loss, and some messages.
constexpr std::uint64_t kMostEvents = 40'000;
constexpr Duration kMostTime = std::chrono::milliseconds(200);
constexpr std::uint64_t kMostEventsOfJob = 400'000;

// Answers that nobody waits for may be on their way to a program when it has ended.
constexpr std::uint64_t kMostLateEvents = 100;

// Time after which a connection to a host that has vanished ends.
constexpr Duration kVanished = std::chrono::seconds(10);

control::RosterOptions roster_options(const JobOptions& options) {
  control::RosterOptions roster;
  roster.start = options.ranks;
  roster.min = options.min;
  roster.max = options.max;
  roster.refills = options.max > 0;
  return roster;
}

bool begins_with(const std::vector<CountedStep>& history, const std::vector<CountedStep>& start) {
  return history.size() >= start.size() && std::equal(start.begin(), start.end(), history.begin());
}

}  // namespace

SimJob::SimJob(JobOptions options) : options_(options), clock_(options.seed), launcher_(clock_.make_loop()) {
  hub_ = std::make_unique<SimHub>(SimHub::Deps{clock_, [this] { return draw(options_.control_delay); },
                                               [this](const std::string& what) { broken(what); }},
                                  roster_options(options_), std::max(options_.ranks, options_.max));
  for (Rank slot = 0; slot < options_.ranks; ++slot) {
    start_process(slot);
  }
}

SimJob::~SimJob() {
  launcher_->kill();
  processes_.clear();
  hub_.reset();
}

Duration SimJob::draw(Duration most) {
  const auto range = static_cast<std::uint64_t>(most.count());
  return range == 0 ? most : Duration(static_cast<std::int64_t>(clock_.random()() % range));
}

void SimJob::start_process(Rank slot) {
  processes_.push_back(std::make_unique<SimProcess>(*this, slot, static_cast<int>(processes_.size())));
  processes_.back()->start();
}

SimProcess* SimJob::present(Rank slot) const {
  for (auto at = processes_.rbegin(); at != processes_.rend(); ++at) {
    if ((*at)->slot() == slot) {
      return at->get();
    }
  }
  return nullptr;
}

std::shared_ptr<net::InprocGroup> SimJob::group(Epoch epoch, int size) {
  std::shared_ptr<net::InprocGroup>& group = groups_[epoch.value];
  if (!group) {
    net::LocalOptions local;
    if (options_.data_delay > Duration(0)) {
      // Some messages take much longer than others, so that ranks see a loss in different places of a step.
      local.delay = [this](Rank, Rank, std::size_t) {
        const Duration delay = draw(options_.data_delay);
        return clock_.random()() % 8 == 0 ? 8 * delay : delay;
      };
    }
    group = net::InprocGroup::create(size, std::move(local));
  }
  return group;
}

void SimJob::cut(std::shared_ptr<net::InprocGroup> group, Rank rank, Duration after) {
  const Status cause(Code::kAborted, "killed");
  if (after == Duration(0)) {
    return group->kill(rank, cause);
  }
  launcher_->after(after, [group = std::move(group), rank, cause] { group->kill(rank, cause); });
}

// ---- the course of a run ----

std::string SimJob::run(std::vector<FaultAt> faults) {
  std::ranges::stable_sort(faults, {}, &FaultAt::event);
  auto next = faults.begin();
  try {
    while (broken_.empty() && !over()) {
      for (; next != faults.end() && next->event <= events_; ++next) {
        inject(*next);
      }
      if (!clock_.step()) {
        broken("V6: the job hangs");
      }
      ++events_;
      const auto owner = std::ranges::find_if(processes_, [&](const auto& p) { return p->owns(clock_.last()); });
      actors_.push_back(owner == processes_.end() ? std::int8_t{-1} : static_cast<std::int8_t>((*owner)->slot()));
      if (events_ > kMostEventsOfJob || (waits_for_step_ && events_ - last_fault_ > kMostEvents)) {
        broken("V6: no step counts for too many events");
      }
    }
    for (std::uint64_t late = 0; broken_.empty() && late < kMostLateEvents && !quiet() && clock_.step(); ++late) {
    }
    for (const auto& process : processes_) {
      process->rethrow();
    }
  } catch (const std::exception& error) {
    broken(std::string("an exception: ") + error.what());
  }
  return broken_.empty() ? check_end() : broken_;
}

void SimJob::inject(const FaultAt& at) {
  const auto usable = [](const SimProcess* p) { return p != nullptr && !p->over() && !p->hit() && !p->told(); };
  SimProcess* process = present(at.slot);
  SimProcess* other = present((at.slot + 1) % options_.ranks);
  if (!usable(process) || (at.fault == JobFault::kApart && !usable(other))) {
    return;
  }
  last_fault_ = events_;
  last_fault_time_ = clock_.now();
  recovered_at_ = 0;
  recovery_ = {};
  waits_for_step_ = true;
  const bool ends = at.fault != JobFault::kLeave && hub_->ends_without(process->peer());
  next_epoch_ = Epoch(hub_->epoch().value + (ends ? 1 : 0));
  switch (at.fault) {
    case JobFault::kKill:
    case JobFault::kVanish:
      process->kill(at.fault == JobFault::kKill ? Duration(0) : kVanished, at.notice);
      break;
    case JobFault::kGiveUp:
      process->give_up();
      break;
    case JobFault::kLeave:
      process->must_leave();
      break;
    case JobFault::kApart:
      process->part_from(*other);
      other->part_from(*process);
      next_epoch_ = Epoch(hub_->epoch().value + 2);  // in two they cannot connect, the present one may be the first
      break;
  }
  if (options_.max > 0) {
    start_another(at.slot);
    if (at.fault == JobFault::kApart) {
      start_another(other->slot());  // the hub chooses which one it gives up
    }
  }
}

// Starts a process for the slot when the present one has ended, as the launcher does. The hub has read all that the
// ended one has sent before the other one comes, but need not have noticed its end.
void SimJob::start_another(Rank slot) {
  const Duration delay = std::chrono::milliseconds(1) + options_.control_delay + draw(options_.control_delay);
  launcher_->after(delay, [this, slot] {
    const SimProcess* process = present(slot);
    if (hub_->over() || std::ranges::any_of(processes_, [](const auto& p) { return p->trained(); })) {
      return;
    }
    process->over() ? start_process(slot) : start_another(slot);
  });
}

bool SimJob::over() const {
  return std::ranges::all_of(processes_, [](const auto& process) { return process->over(); });
}

bool SimJob::quiet() const {
  return std::ranges::all_of(processes_, [](const auto& p) { return p->dead() || p->hit() || p->quiet(); });
}

std::vector<std::uint64_t> SimJob::events_of(Rank slot, std::uint64_t from, std::uint64_t to) const {
  std::vector<std::uint64_t> result;
  for (std::uint64_t event = from; event < std::min<std::uint64_t>(to, actors_.size()); ++event) {
    if (actors_[event] == slot) {
      result.push_back(event);
    }
  }
  return result;
}

std::uint64_t SimJob::counted_at(std::size_t step, int ranks) const {
  const auto found = when_.find({step, ranks});
  return found == when_.end() ? 0 : found->second;
}

// ---- checks ----

void SimJob::check_membership(const rendezvous::Membership& membership) {
  std::vector<std::int64_t> members;
  for (const rendezvous::Member& member : membership.members) {
    members.push_back(member.pid);
  }
  const auto [known, first] = members_.try_emplace(membership.epoch.value, members);
  if (!first && known->second != members) {
    broken("V2: epoch " + std::to_string(membership.epoch.value) + " has two memberships");
  }
}

// All members of an epoch that have the state have the same one, and it goes on from that of the epoch before.
void SimJob::check_state(const SimProcess& process, Epoch epoch) {
  std::vector<std::vector<CountedStep>> state;
  for (int stream = 0; stream < kStreams; ++stream) {
    const Training& training = process.training(stream);
    state.push_back(training.history());
    if (!state.back().empty() && training.digest() != state.back().back().model) {
      broken("V4: the model of " + process.name() + " is not that of its last step");
    }
  }
  const auto [known, first] = beginnings_.try_emplace(epoch.value, state);
  if (!first && known->second != state) {
    broken("V1, V4: " + process.name() + " comes into epoch " + std::to_string(epoch.value) +
           " with other steps than another survivor");
  }
  const auto before = first && epoch.value > 1 ? beginnings_.find(epoch.value - 1) : beginnings_.end();
  for (std::size_t stream = 0; before != beginnings_.end() && stream < kStreams; ++stream) {
    if (!begins_with(state[stream], before->second[stream])) {
      broken("V1: a step that counts is lost at the beginning of epoch " + std::to_string(epoch.value));
    }
  }
}

void SimJob::note_commit(const SimProcess& process, int stream) {
  const CountedStep& last = process.training(stream).history().back();
  const std::size_t step = process.training(stream).steps() - 1;
  const auto [known, first] = counted_.try_emplace(Key(last.epoch, stream, step), last);
  if (!first && known->second != last) {
    broken("V1, V4: " + process.name() + " counts step " + std::to_string(step) + " of stream " +
           std::to_string(stream) + " with another sum or model than another rank");
  }
  ranks_at_[{step, stream}] += 1;
  int ranks = ranks_at_[{step, 0}];
  for (int other = 1; other < kStreams; ++other) {
    ranks = std::min(ranks, ranks_at_[{step, other}]);
  }
  when_.try_emplace({step, ranks}, events_);
  if (waits_for_step_ && last.epoch >= next_epoch_.value) {
    waits_for_step_ = false;
    recovery_ = {last.epoch, step};
    if (clock_.now() - last_fault_time_ > kMostTime) {
      broken("V6: no step has counted for too long after the last fault");
    }
  }
  if (!waits_for_step_ && recovery_ == std::pair(last.epoch, step)) {
    recovered_at_ = events_;
  }
}

std::string SimJob::check_end() const {
  const bool trained = std::ranges::any_of(
      processes_, [](const auto& p) { return p->trained() && (p->dead() || (p->result() && p->result()->ok())); });
  const auto whole = [](const auto& p) { return !p->hit() && !p->told(); };
  const bool state_lives = std::ranges::any_of(processes_, [&](const auto& p) { return whole(p) && p->has_state(); });
  if (!trained && state_lives && std::ranges::count_if(processes_, whole) >= options_.min) {
    return "V6: the job ends before the end of the program" +
           (hub_->over() ? ": " + hub_->over()->to_string() : std::string());
  }
  for (const auto& process : processes_) {
    if (const std::string problem = check_end_of(*process, trained); !problem.empty()) {
      return problem;
    }
  }
  return check_same_course();
}

// A rank that learns of a loss when another one has come to the end of the program may lack the last step.
std::string SimJob::check_end_of(const SimProcess& process, bool trained) const {
  if (process.dead() || process.hit()) {
    return "";
  }
  const Status& result = *process.result();
  const bool left = process.told() && result.code() == Code::kShutdown;
  for (int stream = 0; stream < kStreams; ++stream) {
    const Training& training = process.training(stream);
    if (!training.samples_are_whole()) {
      return "V5: " + process.name() + " has trained a sample twice, or never";
    }
    if (result.ok() && training.steps() < options_.steps) {
      return "V6: " + process.name() + " ends before its last step";
    }
    const bool behind_the_end = training.steps() + 1 >= options_.steps || !process.has_state();
    if (!result.ok() && !left && trained && !behind_the_end) {
      return "V1: " + process.name() + " lacks steps of others at its end: " + result.to_string();
    }
  }
  if (result.ok() && !process.quiet()) {
    return "V8: something is in flight at the end of " + process.name();
  }
  return "";
}

// Checks that the processes that no fault has hit have counted the same steps, as far as each has come.
std::string SimJob::check_same_course() const {
  for (int stream = 0; stream < kStreams; ++stream) {
    const std::vector<CountedStep>* longest = nullptr;
    for (const auto& process : processes_) {
      const auto& history = process->training(stream).history();
      if (process->dead() || process->hit()) {
        continue;
      }
      if (longest != nullptr && !begins_with(history, *longest) && !begins_with(*longest, history)) {
        return "V1: " + process->name() + " has counted other steps than another survivor";
      }
      longest = longest == nullptr || history.size() > longest->size() ? &history : longest;
    }
  }
  return "";
}

std::string SimJob::describe() const {
  std::string text = "after " + std::to_string(events_) + " events, epoch " + std::to_string(hub_->epoch().value);
  for (const auto& process : processes_) {
    text += "\n  " + process->describe();
  }
  return text;
}

}  // namespace sirtaki::world
