#include <algorithm>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {
namespace {

engine::StreamSpec join_spec(std::uint64_t seed, const std::string& name) {
  constexpr int kTensors = 9;
  engine::StreamSpec spec;
  spec.name = name;
  spec.reduce_op = ReduceOp::kSum;
  for (int i = 0; i < kTensors; ++i) {
    engine::StreamTensor tensor;
    tensor.name = "layer" + std::to_string(i);
    const std::int64_t sizes[] = {0, 3, 64, 900, 9000};
    tensor.dims = {sizes[shared_draw(seed, static_cast<std::uint64_t>(i), 51) % 5]};
    spec.tensors.push_back(std::move(tensor));
  }
  return spec;
}

// What every rank knows about an epoch, drawn alike by all.
struct Epoch {
  std::uint64_t seed;
  std::uint64_t number;
  int size;

  int steps(Rank rank) const { return static_cast<int>(draw(0, static_cast<std::uint64_t>(rank)) % 5); }
  int longest() const {
    int most = 0;
    for (Rank r = 0; r < size; ++r) {
      most = std::max(most, steps(r));
    }
    return most;
  }
  bool some_absent() const { return draw(1, 0) % 3 == 0; }
  // The rank that gives `step` up; it is one of those that take it.
  std::optional<Rank> culprit(int step) const {
    const auto place = static_cast<std::uint64_t>(step);
    if (draw(2, place) % 6 != 0) {
      return std::nullopt;
    }
    std::vector<Rank> active;
    for (Rank r = 0; r < size; ++r) {
      if (steps(r) > step) {
        active.push_back(r);
      }
    }
    return active[draw(3, place) % active.size()];
  }
  // By tensor, by rank: who contributes to a step.
  std::vector<bool> contributors(int step, std::size_t tensor) const {
    std::vector<bool> who;
    for (Rank r = 0; r < size; ++r) {
      const std::uint64_t place =
          (static_cast<std::uint64_t>(step) * 100 + tensor) * 10 + static_cast<std::uint64_t>(r);
      who.push_back(steps(r) > step && (!some_absent() || draw(4, place) % 4 != 0));
    }
    return who;
  }
  std::uint64_t salt(int step) const { return number * 1000 + static_cast<std::uint64_t>(step) * 10; }

 private:
  std::uint64_t draw(std::uint64_t what, std::uint64_t place) const {
    return shared_draw(seed, (number * 100 + what) * 100000 + place, 61);
  }
};

std::vector<Owned> submit_step(RankApi& api, StreamId stream, const Epoch& epoch, const engine::StreamSpec& spec,
                               int step) {
  std::vector<Owned> tensors;
  const auto me = static_cast<std::size_t>(api.rank());
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    tensors.push_back(filled(api.rank(), epoch.salt(step) + t, static_cast<std::size_t>(spec.tensors[t].dims.front())));
    if (!epoch.contributors(step, t)[me]) {
      std::fill(tensors[t].values.begin(), tensors[t].values.end(), 0.0F);
    }
  }
  for (const int t : shuffled(static_cast<int>(tensors.size()), api.random())) {
    const auto i = static_cast<std::size_t>(t);
    api.ready(stream, t, tensors[i].view(), !epoch.contributors(step, i)[me]);
  }
  return tensors;
}

void check_step(RankApi& api, StreamId stream, const Epoch& epoch, int step, const std::vector<Owned>& tensors) {
  const std::string what = "epoch " + std::to_string(epoch.number) + ", step " + std::to_string(step);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<bool> who = epoch.contributors(step, t);
    require_sum(tensors[t], who, epoch.salt(step) + t, what + ", tensor " + std::to_string(t));
    const bool any = std::find(who.begin(), who.end(), true) != who.end();
    require(!epoch.some_absent() || tensors[t].values.empty() || (api.used(stream)[t] != 0) == any,
            what + ": wrong about who used a tensor");
  }
}

Scenario run_uneven(RankApi& api, std::uint64_t seed, int epochs) {
  const engine::StreamSpec spec = join_spec(seed, "optimizer");
  const engine::StreamSpec other_spec = join_spec(seed + 1, "other");
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Result<StreamId> other = co_await api.open_stream(other_spec);
  require_ok(other.status(), "opening the other stream");
  for (int e = 0; e < epochs; ++e) {
    const Epoch epoch{seed, static_cast<std::uint64_t>(e), api.size()};
    const std::string what = "epoch " + std::to_string(e);
    for (int s = 0; s < epoch.steps(api.rank()); ++s) {
      require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 3000)), "computing");
      // A step that was given up is taken again, so that the ranks keep their counts.
      if (const auto culprit = epoch.culprit(s)) {
        std::vector<Owned> lost = submit_step(api, *stream, epoch, spec, s);
        if (*culprit == api.rank()) {
          require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", giving up");
        } else {
          api.finish(*stream);
          const Status status = co_await api.wait_stream(*stream);
          require(status.code() == Code::kAborted, what + ": expected a step given up, got " + status.to_string());
        }
      }
      const std::vector<Owned> tensors = submit_step(api, *stream, epoch, spec, s);
      api.finish(*stream);
      require_ok(co_await api.wait_stream(*stream), what);
      check_step(api, *stream, epoch, s, tensors);
      if (s % 2 == 0) {
        const std::vector<Owned> more = submit_step(api, *other, epoch, other_spec, s);
        api.finish(*other);
        require_ok(co_await api.wait_stream(*other), what + ", other stream");
        check_step(api, *other, epoch, s, more);
      }
    }
    if (api.random()() % 4 == 0) {
      require_ok(co_await api.compute(std::chrono::seconds(api.random()() % 4)), "a late rank");
    }
    const Result<Rank> last = co_await api.join();
    require_ok(last.status(), what + ", joining");
    // Everybody was told the same, and operations by name work again.
    Owned told{{static_cast<float>(*last)}};
    require_ok(co_await api.run(allreduce("last", told)), what + ", after joining");
    require(told.values.front() == static_cast<float>(*last * api.size()), what + ": told another rank as the last");
  }
}

Scenario run_names(RankApi& api, std::uint64_t seed) {
  const auto warm_ups = shared_draw(seed, 0, 71) % 3;  // with some, the name needs no message any more
  for (std::uint64_t i = 0; i < warm_ups; ++i) {
    Owned warm = filled(api.rank(), i, 8);
    require_ok(co_await api.run(allreduce("loss", warm)), "before");
  }
  if (api.rank() != 0) {
    require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 2000)), "computing");
    Owned loss = filled(api.rank(), 3, 8);
    const Status status = co_await api.run(allreduce("loss", loss));
    require(status.code() == Code::kMismatch, "expected an error, got " + status.to_string());
    for (const char* word : {"'loss'", "rank 0", "join"}) {
      require(status.text().find(word) != std::string_view::npos,
              "the error does not say " + std::string(word) + ": " + status.to_string());
    }
    const Result<StreamId> stream = co_await api.open_stream(join_spec(seed, "late"));
    require(stream.status().text().find("rank 0") != std::string_view::npos,
            "opening a stream gives " + stream.status().to_string());
  }
  const Result<Rank> last = co_await api.join();
  require_ok(last.status(), "joining");
  require(*last != 0, "rank 0 was not the last to join");
  for (int i = 0; i < 3; ++i) {
    Owned again = filled(api.rank(), 4, 8);
    require_ok(co_await api.run(allreduce("loss", again)), "after");
    require_sum(again, everybody(api.size()), 4, "loss");
  }
}

// The others have not begun the step that one rank gives up before it joins.
Scenario run_given_up(RankApi& api, std::uint64_t seed) {
  const engine::StreamSpec spec = join_spec(seed, "optimizer");
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const std::string what = "epoch " + std::to_string(epoch);
    require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 2000)), "computing");
    if (shared_draw(seed, epoch, 81) % static_cast<std::uint64_t>(api.size()) ==
        static_cast<std::uint64_t>(api.rank())) {
      Owned lost = filled(api.rank(), 1, static_cast<std::size_t>(spec.tensors[1].dims.front()));
      api.ready(*stream, 1, lost.view(), false);
      require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", giving up");
    }
    require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 2000)), "computing");
    const Result<Rank> last = co_await api.join();
    require_ok(last.status(), what + ", joining");
    for (std::uint64_t step = 0; step < 2; ++step) {
      std::vector<Owned> tensors;
      for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
        tensors.push_back(filled(api.rank(), step + t, static_cast<std::size_t>(spec.tensors[t].dims.front())));
      }
      for (const int t : shuffled(static_cast<int>(tensors.size()), api.random())) {
        api.ready(*stream, t, tensors[static_cast<std::size_t>(t)].view(), false);
      }
      api.finish(*stream);
      require_ok(co_await api.wait_stream(*stream), what + ", after joining");
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        require_sum(tensors[t], everybody(api.size()), step + t, what + ", tensor " + std::to_string(t));
      }
    }
  }
}

Scenario run_gone(RankApi& api, int steps, bool dies) {
  const engine::StreamSpec spec = join_spec(5, "optimizer");
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank last = api.size() - 1;
  for (int s = 0; api.rank() == last && s < steps; ++s) {
    std::vector<Owned> tensors;
    for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
      tensors.push_back(filled(api.rank(), t, static_cast<std::size_t>(spec.tensors[t].dims.front())));
      api.ready(*stream, static_cast<int>(t), tensors.back().view(), false);
    }
    api.finish(*stream);
    require_ok(co_await api.wait_stream(*stream), "step " + std::to_string(s));
    require(tensors.back().values == filled(api.rank(), spec.tensors.size() - 1, tensors.back().values.size()).values,
            "zeros changed the sum");
  }
  if (api.rank() == last) {
    if (dies) {
      api.die();
      co_await api.compute(std::chrono::hours(1));
    }
    require_ok(co_await api.leave(), "leaving");
    co_return;
  }
  const Result<Rank> joined = co_await api.join();
  require(joined.status().code() == Code::kPeerLost, "expected a lost peer, got " + joined.status().to_string());
  require(joined.status().text().find("rank " + std::to_string(last)) != std::string_view::npos,
          "the error does not name the rank: " + joined.status().to_string());
}

}  // namespace

ScenarioFn uneven_epochs(std::uint64_t seed, int epochs) {
  return [=](RankApi& api) { return run_uneven(api, seed, epochs); };
}
ScenarioFn names_while_joined(std::uint64_t seed) {
  return [=](RankApi& api) { return run_names(api, seed); };
}
ScenarioFn given_up_before_joining(std::uint64_t seed) {
  return [=](RankApi& api) { return run_given_up(api, seed); };
}
ScenarioFn gone_while_joined(int steps, bool dies) {
  return [=](RankApi& api) { return run_gone(api, steps, dies); };
}

}  // namespace sirtaki::scenarios
