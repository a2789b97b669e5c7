#include <algorithm>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/stream_support.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {
namespace {

Scenario run_steps(RankApi& api, std::uint64_t seed, int steps, bool some_absent) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  // Step indices of the ranks drift: only the stream synchronizes them.
  for (int s = 0; s < steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const bool absent_now = some_absent && s >= 2;
    Step step(api, spec, salt, seed, absent_now);
    require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 3000)), "computing");
    submit_step(api, *stream, step);
    require_ok(co_await api.wait_stream(*stream), "step " + std::to_string(s));
    step.check(salt, api.used(*stream), absent_now, "step " + std::to_string(s));
  }
}

Scenario run_deviations(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < steps; ++s) {
    const auto place = static_cast<std::uint64_t>(s);
    const auto salt = place * 10;
    const std::string what = "step " + std::to_string(s);
    const std::uint64_t kind = shared_draw(seed, place, 31) % 4;  // 0: abort, 1: wrong size, else: a complete step
    const Rank culprit = static_cast<Rank>(shared_draw(seed, place, 32) % static_cast<std::uint64_t>(api.size()));
    Step step(api, spec, salt, seed, false);
    if (kind >= 2) {
      submit_step(api, *stream, step);
      require_ok(co_await api.wait_stream(*stream), what);
      step.check(salt, api.used(*stream), false, what);
      continue;
    }
    if (api.rank() == culprit) {
      deviate(api, *stream, step, kind == 1);
      if (kind == 0) {
        require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", aborting");
        continue;
      }
    } else {
      submit_step(api, *stream, step);
    }
    const Status status = co_await api.wait_stream(*stream);
    require(status.code() == (kind == 0 ? Code::kAborted : Code::kMismatch), what + ": got " + status.to_string());
    require(kind == 0 || status.text().find("layer0") != std::string_view::npos,
            what + ": the error does not name the tensor: " + status.to_string());
  }
}

// Returns the ranks of a process set: some, at least two if the job has three.
std::vector<Rank> drawn_ranks(std::uint64_t seed, int size) {
  const auto left_out = static_cast<Rank>(shared_draw(seed, 0, 61) % static_cast<std::uint64_t>(size));
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < size; ++rank) {
    const bool in = size == 1 || rank != left_out;
    if (in && (ranks.size() < 2 || shared_draw(seed, static_cast<std::uint64_t>(rank), 62) % 2 == 0)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

Step step_of(const RankApi& api, const engine::StreamSpec& spec, std::uint64_t salt, std::uint64_t seed, bool absent) {
  Step step(api, spec, salt, seed, absent);
  for (std::vector<bool>& who : step.contributes) {
    for (Rank rank = 0; rank < api.size(); ++rank) {
      if (!std::ranges::binary_search(spec.ranks, rank)) {
        who[static_cast<std::size_t>(rank)] = false;
      }
    }
  }
  return step;
}

// A stream of all ranks and one of some, under one name, step side by side; errors of the second stay there.
Scenario run_set_steps(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = make_spec(seed);
  engine::StreamSpec some = make_spec(seed + 1);
  some.ranks = drawn_ranks(seed, api.size());
  const bool member = std::ranges::binary_search(some.ranks, api.rank());
  StreamId theirs;
  if (member) {
    const Result<StreamId> opened = co_await api.open_stream(some);
    require_ok(opened.status(), "opening the stream of some");
    theirs = *opened;
  }
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < steps; ++s) {
    const auto place = static_cast<std::uint64_t>(s);
    const auto salt = place * 10;
    const std::string what = "step " + std::to_string(s);
    const auto turn = static_cast<Turn>(shared_draw(seed, place, 63) % 4);
    const Rank culprit = some.ranks[shared_draw(seed, place, 64) % some.ranks.size()];
    Step step(api, spec, salt, seed, false);
    Step set_step = step_of(api, some, salt, seed, turn == Turn::kAbsent);
    const bool deviates = turn == Turn::kAborted || turn == Turn::kWrongSize;
    const bool gives_up = turn == Turn::kAborted && api.rank() == culprit;
    const bool goes_wrong = deviates && api.rank() == culprit;
    if (goes_wrong) {
      deviate(api, theirs, set_step, turn == Turn::kWrongSize);
    } else if (member) {
      submit_step(api, theirs, set_step);
    }
    submit_step(api, *stream, step);
    if (gives_up) {
      require_ok(co_await api.abort_stream(theirs, "out of memory"), what + ", aborting");
    } else if (member) {
      const Status status = co_await api.wait_stream(theirs);
      if (deviates) {
        const Code expected = turn == Turn::kAborted ? Code::kAborted : Code::kMismatch;
        require(status.code() == expected, what + " of some: got " + status.to_string());
        require(turn == Turn::kAborted || status.blame().rank == culprit,
                what + " of some: blames another rank: " + status.to_string());
      } else {
        require_ok(status, what + " of some");
        set_step.check(salt, api.used(theirs), turn == Turn::kAbsent, what + " of some");
      }
    }
    require_ok(co_await api.wait_stream(*stream), what);
    step.check(salt, api.used(*stream), false, what);
  }
  if (member) {
    require_ok(co_await api.close_stream(theirs), "closing");
  }
}

// A tiny stream: the less there is to send, the sooner a step is over.
engine::StreamSpec tiny_spec(std::uint64_t seed) {
  engine::StreamSpec spec = make_spec(seed);
  spec.tensors.resize(1 + seed % 3);
  for (engine::StreamTensor& tensor : spec.tensors) {
    tensor.dims = {8};
  }
  return spec;
}

// A step in which rank `idle` has no gradients.
Step idle_step(const RankApi& api, const engine::StreamSpec& spec, std::uint64_t salt, Rank idle) {
  Step step(api, spec, salt, 0, false);
  for (std::size_t t = 0; t < step.tensors.size(); ++t) {
    step.contributes[t][static_cast<std::size_t>(idle)] = false;
    if (api.rank() == idle) {
      std::fill(step.tensors[t].values.begin(), step.tensors[t].values.end(), 0.0F);
    }
  }
  return step;
}

// One rank alone has no gradients, so the decision about them may reach the others when they are done already.
Scenario run_idle_rank(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank idle = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  for (int s = 0; s < steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s);
    Step step = idle_step(api, spec, salt, idle);
    submit_step(api, *stream, step);
    require_ok(co_await api.wait_stream(*stream), what);
    step.check(salt, api.used(*stream), true, what);
  }
}

// A rank closes the stream when it has the result of the last step; requests of another rank in that step arrive after
// the close.
Scenario run_closed_at_once(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank idle = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  for (int s = 0; s <= steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s) + (s == steps ? ", the last" : "");
    Step step = s == steps ? idle_step(api, spec, salt, idle) : Step(api, spec, salt, seed, false);
    submit_step(api, *stream, step);
    require_ok(co_await api.wait_stream(*stream), what);
    step.check(salt, api.used(*stream), false, what);
  }
  require_ok(co_await api.close_stream(*stream), "closing");
  Owned metric = filled(api.rank(), 5, 10);
  require_ok(co_await api.run(allreduce("metric", metric)), "the metric behind the stream");
}

// Requests of a rank in a step reach the others when that step was given up and the next attempt has begun.
Scenario run_asked_in_a_void_step(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank idle = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  const Rank culprit = (idle + 1) % api.size();
  const int void_step = static_cast<int>(seed % 3);
  for (int s = 0; s < steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s);
    Step step = s < void_step ? Step(api, spec, salt, seed, false) : idle_step(api, spec, salt, idle);
    // After the void step no rank pauses: the step is over before the message arrives.
    const auto work = std::chrono::microseconds(s <= void_step ? api.random()() % 1000 : 0);
    require_ok(co_await api.compute(work), "computing");
    if (s == void_step && api.rank() == culprit) {
      api.ready(*stream, 0, step.tensors[0].view(), api.rank() == idle);
      require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", aborting");
      continue;
    }
    submit_step(api, *stream, step);
    const Status status = co_await api.wait_stream(*stream);
    require(status.code() == (s == void_step ? Code::kAborted : Code::kOk), what + ": got " + status.to_string());
    if (status.ok()) {
      step.check(salt, api.used(*stream), false, what);
    }
  }
}

Scenario run_given_up_often(RankApi& api, std::uint64_t seed, int times) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < times + 3; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s);
    Step step(api, spec, salt, seed, false);
    if (s < times && api.rank() == s % api.size()) {
      for (std::size_t t = 0; t < step.tensors.size(); ++t) {
        api.ready(*stream, static_cast<int>(t), step.tensors[t].view(), false);
      }
      require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 1500)), "computing");
      require_ok(co_await api.abort_stream(*stream, "not finite"), what + ", aborting");
      continue;
    }
    submit_step(api, *stream, step);
    const Status status = co_await api.wait_stream(*stream);
    require(status.code() == (s < times ? Code::kAborted : Code::kOk), what + ": got " + status.to_string());
    if (status.ok()) {
      step.check(salt, api.used(*stream), false, what);
    }
  }
}

Scenario run_everything(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < steps; ++s) {
    const auto place = static_cast<std::uint64_t>(s);
    const auto salt = place * 10;
    const std::string what = "step " + std::to_string(s);
    Step step(api, spec, salt, seed, shared_draw(seed, 7, 7) % 2 == 0);
    Owned early = filled(api.rank(), salt, 11);
    Owned late = filled(api.rank(), salt, 3000);
    const std::uint64_t first = api.submit(allreduce("metric", early));
    if (api.random()() % 8 == 0) {
      require_ok(co_await api.compute(std::chrono::seconds(api.random()() % 5)), "a stall");
    }
    submit_step(api, *stream, step);
    const std::uint64_t second = api.submit(allreduce("urgent" + std::to_string(s % 2), late));
    if (api.random()() % 2 == 0) {
      require_ok(co_await api.wait(first), what + ", metric");
    }
    require_ok(co_await api.wait_stream(*stream), what);
    require_ok(co_await api.wait(second), what + ", urgent");
    require_ok(co_await api.wait(first), what + ", metric");
    require_sum(early, everybody(api.size()), salt, what + ", metric");
    require_sum(late, everybody(api.size()), salt, what + ", urgent");
    step.check(salt, api.used(*stream), false, what);
  }
}

}  // namespace

ScenarioFn stream_of_a_set(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_set_steps(api, seed, steps); };
}
ScenarioFn stream_steps(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_steps(api, seed, steps, false); };
}
ScenarioFn stream_unused(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_steps(api, seed, steps, true); };
}
ScenarioFn stream_idle_rank(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_idle_rank(api, seed, steps); };
}
ScenarioFn stream_closed_at_once(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_closed_at_once(api, seed, steps); };
}
ScenarioFn stream_asked_in_a_void_step(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_asked_in_a_void_step(api, seed, steps); };
}
ScenarioFn stream_deviations(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_deviations(api, seed, steps); };
}
ScenarioFn stream_given_up_often(std::uint64_t seed, int times) {
  return [=](RankApi& api) { return run_given_up_often(api, seed, times); };
}
ScenarioFn everything(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_everything(api, seed, steps); };
}

}  // namespace sirtaki::scenarios
