#include "tests/world/elastic/sim_session.h"

#include <utility>

namespace sirtaki::world {
namespace {

constexpr Duration kSilence = std::chrono::seconds(3);
constexpr int kMostTurns = 10'000;  // turns of a loop, until all callbacks of an ended engine have come

class NoLines final : public LogSink {
 public:
  void write(LogLevel /*level*/, std::string_view /*line*/) override {}
};

// Limits at which the small tensors of a training exercise fusion, cutting and credit.
engine::EngineOptions options_of(const SimSession::Place& place) {
  engine::EngineOptions options;
  options.layout.fusion_bytes = 128;
  options.layout.partition_bytes = 512;
  options.credit_bytes = 1024;
  options.replan = place.replan;
  options.commit_gate = true;
  return options;
}

}  // namespace

SimSession::SimSession(Deps deps, Place place)
    : deps_(std::move(deps)),
      place_(std::move(place)),
      timeline_(place_.rank, "sim"),
      log_({.level = LogLevel::kError, .rank = place_.rank, .timestamps = false, .wall_clock = {}, .clock = {}},
           std::make_unique<NoLines>()),
      streams_(kStreams) {
  deps_.loop.run_inline([this] {
    link_ = place_.group->endpoint(place_.rank, deps_.loop);
    // The coordinator ends the epoch if the peer is lost; this rank alone would do so much later.
    link_->set_on_peer_lost([this](Rank rank, const Status& /*cause*/) {
      deps_.loop.after(cause_grace(), [this, rank] {
        engine_->abort({Code::kRanksChanged, "the coordinator has not taken the peer for lost", {rank, ""}});
      });
    });
    net_ = std::make_unique<net::DirectCollectives>(*link_);
    engine_ = std::make_unique<engine::Engine>(
        options_of(place_), engine::EngineDeps{deps_.loop, *net_, *this, stats_, timeline_, &log_}, [this] {
          return engine::Callers{pending_ > 0, pending_ > 0};
        });
  });
}

SimSession::~SimSession() {
  deps_.loop.kill();
  deps_.loop.run_inline([this] {
    net_.reset();  // operations in flight return their memory to the pool of the engine
    engine_.reset();
    link_.reset();
  });
}

void SimSession::send(control::MemberMessage message) {
  if (!silent_) {
    deps_.send(control::encode(message));
  }
}

Duration SimSession::cause_grace() const {
  return kSilence + engine::kWordGrace;
}

// ---- calls of the control connection ----

void SimSession::on_message(std::vector<std::byte> message) {
  deps_.loop.post([this, message = std::move(message)] { engine_->on_message(message); });
}

void SimSession::on_left(Rank rank) {
  deps_.loop.post([this, rank] { engine_->on_left(rank); });
}

void SimSession::fail(Status cause) {
  deps_.loop.post([this, cause = std::move(cause)] { engine_->abort(cause); });
}

// ---- calls of the program ----

// Wraps the receiver of an answer, which has to come exactly once.
template <class T>
SimSession::Answer<T> SimSession::counted(std::function<void(T)> then) {
  ++pending_;
  return [this, then = std::move(then), come = false](T value) mutable {
    if (std::exchange(come, true)) {
      return deps_.broken("V9: a callback has come twice");
    }
    --pending_;
    then(std::move(value));
  };
}

template <class T, class Start>
Await<T> SimSession::call(Start start) {
  auto cell = std::make_shared<typename Await<T>::Cell>();
  auto answer = counted<T>([this, cell](T value) {
    deps_.program.post([cell, value = std::move(value)]() mutable { give<T>(*cell, std::move(value)); });
  });
  deps_.loop.post([start = std::move(start), answer = std::move(answer)]() mutable { start(std::move(answer)); });
  return Await<T>(cell);
}

Await<Status> SimSession::open_stream(int number, engine::StreamSpec spec) {
  return call<Status>([this, number, spec = std::move(spec)](Answer<Status> answer) mutable {
    engine_->open_stream(std::move(spec),
                         [this, number, answer = std::move(answer)](const Result<StreamId>& id) mutable {
                           if (id) {
                             streams_[static_cast<std::size_t>(number)] = *id;
                           }
                           answer(id.status());
                         });
  });
}

void SimSession::submit(int number, Training& training, const std::vector<int>& order) {
  deps_.loop.post([this, number, &training, order] {
    engine::GradientStream* stream = engine_->stream(streams_[static_cast<std::size_t>(number)]);
    for (const int tensor : order) {
      stream->ready(tensor, training.gradient(tensor), false, deps_.loop.now());
    }
    stream->finish(stream->board()->finish(deps_.loop.now()), deps_.loop.now());
  });
}

Await<Status> SimSession::wait(int number) {
  return call<Status>([this, number](Answer<Status> answer) {
    engine_->stream(streams_[static_cast<std::size_t>(number)])->wait(std::move(answer));
  });
}

Await<Status> SimSession::run(engine::OpSpec spec) {
  return call<Status>(
      [this, spec = std::move(spec)](Answer<Status> answer) mutable { submit_op(std::move(spec), std::move(answer)); });
}

void SimSession::start(engine::OpSpec spec) {
  auto answer = counted<Status>([](const Status&) {});
  deps_.loop.post([this, spec = std::move(spec), answer = std::move(answer)]() mutable {
    submit_op(std::move(spec), std::move(answer));
  });
}

void SimSession::submit_op(engine::OpSpec spec, Answer<Status> answer) {
  engine_->submit(std::move(spec), [answer = std::move(answer)](Status status, const engine::OpResult&) mutable {
    answer(std::move(status));
  });
}

void SimSession::close(std::function<void()> then) {
  deps_.loop.post([this, then = std::move(then)] {
    engine_->end({Code::kShutdown, "the session was shut down"});
    silent_ = true;
    then();
  });
}

void SimSession::drop(std::function<std::uint64_t()> memory, Frozen then) {
  silent_ = true;
  deps_.loop.post([this, memory = std::move(memory), then = std::move(then)] {
    const Status why = engine_->failure();
    engine_->abort({Code::kRanksChanged, "the epoch of this session has ended"});
    drain(0, memory(), memory, engine_->reports(), why, then);
  });
}

void SimSession::drain(int turns, std::uint64_t memory, std::function<std::uint64_t()> now,
                       control::StreamReports reports, Status why, Frozen then) {
  if (!idle() && turns < kMostTurns) {
    deps_.loop.post([=, this] { drain(turns + 1, memory, now, reports, why, then); });
    return;
  }
  if (!idle()) {
    deps_.broken("V9: a callback does not come after the end of an epoch: " + engine_->describe());
  }
  if (engine_->reports() != reports || now() != memory) {
    deps_.broken("V1: a stream changes after the report of its position");
  }
  deps_.program.post([reports, why, then] { then(reports, why); });
}

}  // namespace sirtaki::world
