#include "tests/world/elastic/sim_process.h"

#include <algorithm>
#include <cstring>

#include "tests/world/elastic/sim_job.h"

namespace sirtaki::world {
namespace {

constexpr Duration kConnectTimeout = std::chrono::milliseconds(20);
constexpr Duration kCauseGrace = std::chrono::milliseconds(5);

}  // namespace

SimProcess::SimProcess(SimJob& job, Rank slot, int number)
    : job_(job),
      slot_(slot),
      number_(number),
      control_(job.clock().make_loop()),
      thread_(job.clock().make_loop()),
      vote_(sizeof(std::uint32_t)),
      metric_(2) {
  for (int stream = 0; stream < kStreams; ++stream) {
    trainings_.emplace_back(stream);
  }
}

SimProcess::~SimProcess() {
  control_->kill();
  thread_->kill();
  program_.reset();
  session_.reset();
}

void SimProcess::start() {
  peer_ = job_.hub().connect(*this, slot_);
  program_.emplace(program());
  thread_->post([this] { program_->resume(); });
}

bool SimProcess::trained() const {
  return std::ranges::all_of(trainings_, [this](const Training& t) { return t.steps() >= job_.options().steps; });
}

bool SimProcess::owns(const SimLoop* loop) const {
  return loop == control_.get() || loop == thread_.get() ||
         std::ranges::any_of(session_loops_, [loop](const auto& own) { return own.get() == loop; });
}

std::string SimProcess::describe() const {
  static constexpr const char* kStates[] = {"open", "joining", "member", "over"};
  std::string text = name() + (dead_ ? ", dead" : "") + (hit_ ? ", hit" : "") + ", connection " +
                     kStates[static_cast<int>(state_)] + ", rank " + std::to_string(rank_) + " of epoch " +
                     std::to_string(last_.value);
  for (const Training& training : trainings_) {
    text += ", " + std::to_string(training.steps()) + " steps";
  }
  text += result_ ? ", ended: " + result_->to_string() : "";
  return text + (session_ ? "; " + session_->describe() : "");
}

// ---- faults ----

void SimProcess::kill(Duration cut, Duration notice) {
  dead_ = hit_ = true;
  control_->kill();
  thread_->kill();
  for (const auto& loop : session_loops_) {
    loop->kill();
  }
  const auto* place = session_ ? &session_->place() : seat_ ? &*seat_ : nullptr;
  if (place != nullptr) {
    job_.cut(place->group, place->rank, cut);
  }
  job_.hub().end(peer_, notice, "killed");
}

void SimProcess::give_up() {
  hit_ = true;
  job_.hub().silence(peer_);
}

void SimProcess::part_from(const SimProcess& other) {
  apart_ = other.peer_;
  control_->after(job_.draw_delay(), [this] {
    if (session_) {
      session_->fail({Code::kRanksChanged, "the connection to a rank is cut", {}});
    }
  });
}

// ---- control loop, as in rendezvous::Client ----

void SimProcess::on_seat(Rank rank, const std::vector<std::byte>& notice, const rendezvous::Membership& membership) {
  if (state_ != State::kJoining) {
    return job_.broken("V2: " + name() + " gets a seat that it has not asked for");
  }
  state_ = State::kMember;
  rank_ = rank;
  broken_ = {};
  const auto decoded = control::decode_roster_notice(notice);
  const auto* formed = decoded ? std::get_if<control::EpochFormed>(&*decoded) : nullptr;
  if (formed == nullptr || formed->epoch != membership.epoch || formed->seats.size() != membership.members.size() ||
      formed->rank != rank) {
    return job_.broken("V2: the seat of " + name() + " is not that of the membership");
  }
  job_.check_membership(membership);
  apart_ranks_.clear();
  for (const rendezvous::Member& member : membership.members) {
    if (apart_ != rendezvous::PeerId() && member.pid == static_cast<std::int64_t>(apart_.value)) {
      apart_ranks_.push_back(member.rank);
    }
  }
  thread_->post([this, seat = *formed] { take_seat(seat); });
}

void SimProcess::on_lost(Rank rank, const Status& why) {
  if (rank == rank_) {
    end(why.with_context("the server gave this rank up"));
  } else if (state_ == State::kMember) {
    fail(why);
  }
}

void SimProcess::on_left(Rank rank) {
  if (state_ == State::kMember && session_) {
    session_->on_left(rank);
  }
}

void SimProcess::on_message(const std::vector<std::byte>& message) {
  if (state_ != State::kMember) {
    return;
  }
  if (session_) {
    session_->on_message(message);
  } else {
    early_.push_back(message);
  }
}

void SimProcess::on_notice(const std::vector<std::byte>& bytes) {
  const auto notice = control::decode_roster_notice(bytes);
  const auto* change = notice ? std::get_if<control::ChangeWanted>(&*notice) : nullptr;
  if (state_ == State::kMember && change != nullptr) {
    wanted_ = std::max(wanted_, change->number);
  }
}

void SimProcess::end(const Status& cause) {
  const State before = std::exchange(state_, State::kOver);
  if (before == State::kOver) {
    return;
  }
  hit_ = hit_ || (!apart_ranks_.empty() && !job_.hub().over());  // given up as one of a pair
  cause_ = cause;
  if (before == State::kJoining) {
    thread_->post([this, cause] { opened(cause); });
  } else if (before == State::kMember) {
    fail(cause);
  }
}

void SimProcess::fail(const Status& cause) {
  if (session_) {
    session_->fail(cause);
  } else {
    broken_.update(cause);
  }
}

void SimProcess::send_join(std::vector<std::byte> report) {
  if (state_ == State::kOver) {
    thread_->post([this] { opened(cause_); });
    return;
  }
  state_ = State::kJoining;
  rank_ = rank_ < 0 ? slot_ : rank_;
  early_.clear();
  job_.hub().join(peer_, std::move(report));
}

// ---- program loop: epochs, as in DefaultSession and ControlLine ----

Await<Status> SimProcess::open(std::uint32_t change) {
  opening_ = std::make_shared<Await<Status>::Cell>();
  agreed_ = change;
  if (session_) {
    control_->post([this] {
      state_ = state_ == State::kMember ? State::kOpen : state_;
      session_->drop([this] { return memory(); },
                     [this](control::StreamReports reports, Status why) {
                       frozen_ = std::move(reports);
                       why_ = std::move(why);
                       frozen_streams_.clear();
                       for (int stream = 0; stream < kStreams; ++stream) {
                         frozen_streams_.push_back(session_->stream(stream));
                       }
                       session_.reset();
                       join();
                     });
    });
  } else {
    join();
  }
  return Await<Status>(opening_);
}

void SimProcess::join() {
  const bool first = last_ == Epoch();
  std::vector<std::byte> report = control::encode(control::RosterReport(
      control::Regroup{last_, agreed_, !first && has_state_, admits_, why_, frozen_, std::exchange(unreachable_, {})}));
  control_->post([this, report = std::move(report)]() mutable { send_join(std::move(report)); });
}

void SimProcess::take_seat(const control::EpochFormed& formed) {
  const control::Seat& seat = formed.seats[static_cast<std::size_t>(formed.rank)];
  const bool first = last_ == Epoch();
  if (!first && seat.old_rank < 0) {
    job_.broken("V10: " + name() + " comes into epoch " + std::to_string(formed.epoch.value) + " like a new process");
  }
  if (formed.epoch <= last_) {
    job_.broken("V2: the number of an epoch does not grow for " + name());
  }
  if (!formed.seats.front().has_state) {
    job_.broken("V7: rank 0 of epoch " + std::to_string(formed.epoch.value) + " has no state");
  }
  if (!first) {
    settle(formed.streams);
  }
  last_ = formed.epoch;
  has_state_ = has_state_ || last_ == Epoch(1);
  newcomers_ = std::ranges::any_of(formed.seats, [](const control::Seat& s) { return !s.has_state; });
  agreed_ = 0;
  settled_ = formed.change;
  why_ = {};
  if (has_state_) {
    job_.check_state(*this, last_);
  }
  const int size = static_cast<int>(formed.seats.size());
  seat_ = {last_, formed.rank, size, job_.group(last_, size), job_.options().replan};
  thread_->after(job_.draw_delay(), [this] { start_session(); });
}

// Commits the steps in progress that count by the verdict.
void SimProcess::settle(const control::StreamVerdicts& verdict) {
  for (const control::StreamReport& report : std::exchange(frozen_, {})) {
    const auto found = std::ranges::find(verdict, report.stream, &control::StreamVerdict::stream);
    const auto number = std::ranges::find(frozen_streams_, report.stream) - frozen_streams_.begin();
    if (found != verdict.end() && found->committed > report.step) {
      commit(static_cast<int>(number), last_);
    }
  }
}

void SimProcess::start_session() {
  if (!broken_.ok()) {
    seat_.reset();
    return broken_.code() == Code::kRanksChanged ? join() : opened(broken_);
  }
  if (!apart_ranks_.empty() && unreachable_.empty()) {
    thread_->after(kConnectTimeout, [this] { cannot_connect(); });
    return;
  }
  session_loops_.push_back(job_.clock().make_loop());
  const auto send = [this](std::vector<std::byte> message) {
    control_->post([this, message = std::move(message)]() mutable {
      if (state_ == State::kMember) {
        job_.hub().message(peer_, std::move(message));
      }
    });
  };
  session_ = std::make_unique<SimSession>(
      SimSession::Deps{*session_loops_.back(), *thread_, send, [this](const std::string& what) { job_.broken(what); }},
      *std::exchange(seat_, std::nullopt));
  for (std::vector<std::byte>& message : std::exchange(early_, {})) {
    session_->on_message(std::move(message));
  }
  opened({});
}

// The coordinator has some time for a word about the others, as in DataPlane::start().
void SimProcess::cannot_connect() {
  if (broken_.ok()) {
    unreachable_ = apart_ranks_;
    why_ = {Code::kRanksChanged, "no data connection", {unreachable_.front(), ""}};
  }
  const Duration grace = broken_.ok() ? kCauseGrace : Duration(0);
  thread_->after(grace, [this] {
    broken_.update({Code::kRanksChanged, "no data connection"});
    start_session();
  });
}

void SimProcess::opened(const Status& status) {
  const auto cell = std::exchange(opening_, nullptr);
  if (cell == nullptr) {
    return job_.broken("V9: " + name() + " opens an epoch twice: " + status.to_string());
  }
  give<Status>(*cell, status);
}

// ---- program ----

Scenario SimProcess::program() {
  Status status = co_await open(0);
  while (status.ok()) {
    if (newcomers_) {
      status = co_await share_state();
      if (status.ok()) {
        take_state();
      }
    }
    if (status.ok()) {
      admit();
    }
    for (int stream = 0; stream < kStreams && status.ok(); ++stream) {
      status = co_await session_->open_stream(stream, trainings_[static_cast<std::size_t>(stream)].spec());
    }
    std::uint32_t change = 0;
    while (status.ok() && change == 0 && !trained()) {
      submit();
      for (int stream = 0; stream < kStreams && status.ok(); ++stream) {
        status = co_await session_->wait(stream);
        if (status.ok()) {
          commit(stream, last_);
        }
      }
      if (status.ok() && job_.options().changes) {
        say_leaving();
        const std::uint32_t number = wanted();
        std::memcpy(vote_.data(), &number, sizeof number);
        status = co_await session_->run(broadcast("change", vote_));
        std::memcpy(&change, vote_.data(), sizeof change);
      }
    }
    if (status.ok() && change == 0) {
      break;
    }
    if (status.ok() || status.code() == Code::kRanksChanged) {
      status = co_await open(status.ok() ? change : 0);
    }
  }
  finish(status);
}

engine::OpSpec SimProcess::broadcast(const std::string& name, std::vector<std::byte>& bytes) const {
  engine::OpSpec spec;
  spec.kind = OpKind::kBroadcast;
  spec.name = name;
  spec.input = {bytes.data(), static_cast<std::int64_t>(bytes.size()), DType::kU8, {}};
  spec.output = spec.input;
  spec.dims = {static_cast<std::int64_t>(bytes.size())};
  return spec;
}

Await<Status> SimProcess::share_state() {
  state_bytes_.clear();
  for (const Training& training : trainings_) {
    training.save(state_bytes_);
  }
  return session_->run(broadcast("state", state_bytes_));
}

void SimProcess::take_state() {
  if (!has_state_) {
    std::size_t at = 0;
    for (Training& training : trainings_) {
      training.load(state_bytes_, at);
    }
  }
  job_.check_state(*this, last_);
}

void SimProcess::admit() {
  if (job_.options().max > 0 && !std::exchange(admits_, true)) {
    has_state_ = true;
    control_->post([this] {
      if (state_ == State::kMember) {
        job_.hub().report(peer_, control::encode(control::RosterReport(control::Admission{true})));
      }
    });
  }
}

// A notice between two epochs is lost, so it is given again at each commit of another epoch.
void SimProcess::say_leaving() {
  if (told_ && std::exchange(said_leaving_, last_) != last_) {
    control_->post([this] {
      if (state_ == State::kMember) {
        job_.hub().report(peer_, control::encode(control::RosterReport(control::MustLeave{})));
      }
    });
  }
}

void SimProcess::submit() {
  const SimSession::Place& place = session_->place();
  if (job_.options().metric) {
    const std::size_t parity = trainings_.front().steps() % metric_.size();
    engine::OpSpec spec;
    spec.name = "metric " + std::to_string(parity);
    spec.input = {reinterpret_cast<std::byte*>(&metric_[parity]), 1, DType::kF32, {}};
    spec.output = spec.input;
    spec.dims = {1};
    session_->start(std::move(spec));
  }
  for (int stream = 0; stream < kStreams; ++stream) {
    Training& training = trainings_[static_cast<std::size_t>(stream)];
    training.deal(place.rank, place.size);
    std::vector<int> order(static_cast<std::size_t>(training.tensors()));
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int>((i + static_cast<std::size_t>(slot_)) % order.size());
    }
    session_->submit(stream, training, order);
  }
}

void SimProcess::commit(int stream, Epoch epoch) {
  Training& training = trainings_[static_cast<std::size_t>(stream)];
  if (const std::string problem = training.commit(epoch); !problem.empty()) {
    job_.broken(problem + ", " + name());
  }
  job_.note_commit(*this, stream);
}

std::uint64_t SimProcess::memory() const {
  std::uint64_t digest = 0;
  for (const Training& training : trainings_) {
    digest = digest * 31 + training.gradients_digest();
  }
  return digest;
}

// Leaves in order at the end of the program. Other ends cut the connections.
void SimProcess::finish(const Status& status) {
  result_ = status;
  if (status.ok()) {
    return session_->close([this] {
      control_->post([this] {
        if (state_ == State::kMember) {
          job_.hub().leave(peer_);
        }
      });
    });
  }
  if (session_) {
    session_->place().group->kill(session_->place().rank, status);
  }
  control_->post([this] {
    state_ = State::kOver;
    job_.hub().end(peer_, job_.draw_delay(), "its program has ended with an error");
  });
}

}  // namespace sirtaki::world
