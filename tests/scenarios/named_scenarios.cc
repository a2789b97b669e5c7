#include <algorithm>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {
namespace {

engine::OpSpec base_spec(OpKind kind, const std::string& name, Owned& input) {
  engine::OpSpec spec;
  spec.kind = kind;
  spec.name = name;
  spec.input = input.view();
  spec.dims = {static_cast<std::int64_t>(input.values.size())};
  return spec;
}

std::vector<float> floats_of(const engine::OpResult& result) {
  std::vector<float> values(result.data.size() / sizeof(float));
  std::ranges::copy(result.data, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// One operation of a kind chosen by `pick`, with what its result must be.
struct Planned {
  OpKind kind = OpKind::kAllreduce;
  std::uint64_t salt = 0;
  std::size_t count = 0;
  Owned tensor;
  std::uint64_t request = 0;
};

Planned submit_planned(RankApi& api, const std::string& name, std::uint64_t pick) {
  Planned op;
  op.kind = static_cast<OpKind>(pick % kOpKindCount);
  op.salt = pick % 101;
  const auto size = static_cast<std::size_t>(api.size());
  op.count = (pick / 7) % 40;
  if (op.kind == OpKind::kAllgather) {
    op.count += static_cast<std::size_t>(api.rank());  // another first dimension on each rank
  } else if (op.kind == OpKind::kAlltoall) {
    op.count = (op.count / size + 1) * size;
  }
  op.tensor = filled(api.rank(), op.salt, op.count);
  engine::OpSpec spec = base_spec(op.kind, name, op.tensor);
  if (op.kind == OpKind::kBroadcast) {
    spec.root = static_cast<Rank>(pick % size);
  }
  if (op.kind == OpKind::kAllreduce || op.kind == OpKind::kBroadcast) {
    spec.output = spec.input;
  }
  op.request = api.submit(std::move(spec));
  return op;
}

void check_planned(RankApi& api, const Planned& op, std::uint64_t pick, const std::string& name) {
  const int size = api.size();
  switch (op.kind) {
    case OpKind::kAllreduce:
      require_sum(op.tensor, everybody(size), op.salt, name);
      return;
    case OpKind::kBroadcast: {
      const Owned expected = filled(static_cast<Rank>(pick % static_cast<std::size_t>(size)), op.salt, op.count);
      require(op.tensor.values == expected.values, name + ": wrong broadcast");
      return;
    }
    case OpKind::kAllgather: {
      std::vector<float> expected;
      const std::size_t base = op.count - static_cast<std::size_t>(api.rank());
      for (Rank r = 0; r < size; ++r) {
        const Owned part = filled(r, op.salt, base + static_cast<std::size_t>(r));
        expected.insert(expected.end(), part.values.begin(), part.values.end());
      }
      require(floats_of(api.result(op.request)) == expected, name + ": wrong allgather");
      return;
    }
    case OpKind::kAlltoall: {
      std::vector<float> expected;
      const std::size_t block = op.count / static_cast<std::size_t>(size);
      for (Rank r = 0; r < size; ++r) {
        const Owned all = filled(r, op.salt, op.count);
        const auto begin =
            all.values.begin() + static_cast<std::ptrdiff_t>(block * static_cast<std::size_t>(api.rank()));
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(block));
      }
      require(floats_of(api.result(op.request)) == expected, name + ": wrong alltoall");
      return;
    }
    case OpKind::kReduceScatter: {
      const std::size_t p = static_cast<std::size_t>(size);
      const auto me = static_cast<std::size_t>(api.rank());
      const std::size_t begin = me * (op.count / p) + std::min(me, op.count % p);
      const std::size_t rows = op.count / p + (me < op.count % p ? 1 : 0);
      std::vector<float> expected;
      for (std::size_t i = begin; i < begin + rows; ++i) {
        expected.push_back(sum_over(everybody(size), op.salt, i));
      }
      require(floats_of(api.result(op.request)) == expected, name + ": wrong reducescatter");
      return;
    }
    case OpKind::kBarrier:
      return;
  }
}

// The root of a broadcast needs nobody: it sends all pieces before the others have begun, several of them with one tag.
Scenario run_broadcast_ahead(RankApi& api, std::uint64_t seed, int uses) {
  constexpr std::size_t kCount = 41;
  for (int use = 0; use < uses; ++use) {
    const auto salt = static_cast<std::uint64_t>(use) * 5;
    const Rank root = static_cast<Rank>(shared_draw(seed, static_cast<std::uint64_t>(use), 51) %
                                        static_cast<std::uint64_t>(api.size()));
    if (api.rank() != root) {
      require_ok(co_await api.compute(std::chrono::milliseconds(api.random()() % 4)), "computing");
    }
    Owned tensor = filled(api.rank(), salt, kCount);
    engine::OpSpec spec = base_spec(OpKind::kBroadcast, "weights" + std::to_string(root), tensor);
    spec.output = spec.input;
    spec.root = root;
    require_ok(co_await api.run(std::move(spec)), "broadcast");
    require(tensor.values == filled(root, salt, kCount).values,
            "use " + std::to_string(use) + " from rank " + std::to_string(root) + ": pieces are in wrong places");
  }
}

Scenario run_named(RankApi& api, std::uint64_t seed, int rounds) {
  constexpr int kNames = 8;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Planned> ops(kNames);
    for (const int n : shuffled(kNames, api.random())) {
      // Mostly the same every round, so that the fast path is used; sometimes another operation under the name.
      const std::uint64_t era = shared_draw(seed, static_cast<std::uint64_t>(round), 5) % 4 == 0 ? 1 + round : 0;
      const std::uint64_t pick = shared_draw(seed, static_cast<std::uint64_t>(n), era);
      ops[static_cast<std::size_t>(n)] = submit_planned(api, "op" + std::to_string(n), pick);
    }
    for (const int n : shuffled(kNames, api.random())) {
      const std::uint64_t era = shared_draw(seed, static_cast<std::uint64_t>(round), 5) % 4 == 0 ? 1 + round : 0;
      const std::uint64_t pick = shared_draw(seed, static_cast<std::uint64_t>(n), era);
      const Planned& op = ops[static_cast<std::size_t>(n)];
      const std::string name = "op" + std::to_string(n) + " in round " + std::to_string(round);
      const Status status = co_await api.wait(op.request);
      require_ok(status, name);
      check_planned(api, op, pick, name);
    }
  }
  // Not together: a broadcast's root may be done before the others have begun.
  require_ok(co_await api.leave(), "leaving");
}

Scenario run_changing(RankApi& api, std::uint64_t seed, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const auto place = static_cast<std::uint64_t>(round);
    Owned tensor = filled(api.rank(), place, shared_draw(seed, place, 1) % 3 + 1);
    require_ok(co_await api.run(allreduce("loss", tensor)), "round " + std::to_string(round));
    require_sum(tensor, everybody(api.size()), place, "loss");
  }
}

Scenario run_mismatch(RankApi& api, std::uint64_t seed, int bad_round) {
  const Rank culprit = static_cast<Rank>(shared_draw(seed, 0, 9) % static_cast<std::uint64_t>(api.size()));
  for (int round = 0; round < bad_round + 3; ++round) {
    const bool bad = round == bad_round;
    Owned tensor = filled(api.rank(), 1, bad && api.rank() == culprit ? 6 : 4);
    const Status status = co_await api.run(allreduce("grad", tensor));
    if (!bad) {
      require_ok(status, "round " + std::to_string(round));
      require_sum(tensor, everybody(api.size()), 1, "grad");
      continue;
    }
    require(status.code() == Code::kMismatch, "expected a mismatch, got " + status.to_string());
    for (const char* word : {"'grad'", "[4]", "[6]", "rank"}) {
      require(status.text().find(word) != std::string_view::npos,
              "the error does not say " + std::string(word) + ": " + status.to_string());
    }
  }
}

Scenario run_stuck(RankApi& api) {
  Owned warm = filled(api.rank(), 2, 8);
  require_ok(co_await api.run(allreduce("warm", warm)), "before");
  Owned tensor = filled(api.rank(), 3, 8);
  const Status status = co_await api.run(allreduce(api.rank() == 0 ? "left" : "right", tensor));
  require(status.code() == Code::kStuck, "expected stuck, got " + status.to_string());
  for (const char* word : {"left", "right", "rank 0"}) {
    require(status.text().find(word) != std::string_view::npos,
            "the error does not say " + std::string(word) + ": " + status.to_string());
  }
  Owned again = filled(api.rank(), 4, 8);
  require_ok(co_await api.run(allreduce("left", again)), "after");
  require_sum(again, everybody(api.size()), 4, "left");
}

Scenario run_late(RankApi& api, Duration lateness) {
  if (api.rank() == api.size() - 1) {
    require_ok(co_await api.compute(lateness), "computing");
  }
  Owned tensor = filled(api.rank(), 5, 100);
  require_ok(co_await api.run(allreduce("after validation", tensor)), "a rank that is only late");
  require_sum(tensor, everybody(api.size()), 5, "after validation");
}

Scenario run_first_use(RankApi& api, int names) {
  std::vector<Owned> tensors;
  std::vector<std::uint64_t> requests;
  for (int n = 0; n < names; ++n) {
    tensors.push_back(filled(api.rank(), static_cast<std::uint64_t>(n), 3));
  }
  for (int n = 0; n < names; ++n) {
    requests.push_back(api.submit(allreduce("metric" + std::to_string(n), tensors[static_cast<std::size_t>(n)])));
  }
  for (const std::uint64_t request : requests) {
    require_ok(co_await api.wait(request), "first use");
  }
  for (int n = 0; n < names; ++n) {
    require_sum(tensors[static_cast<std::size_t>(n)], everybody(api.size()), static_cast<std::uint64_t>(n), "metric");
  }
}

Scenario run_gone(RankApi& api, int rounds, bool dies, Rank who) {
  const Rank last = who < 0 ? api.size() - 1 : who;
  for (int round = 0;; ++round) {
    if (api.rank() == last && round == rounds) {
      if (dies) {
        api.die();
        co_await api.compute(std::chrono::hours(1));
      }
      require_ok(co_await api.leave(), "leaving");
      co_return;
    }
    Owned tensor = filled(api.rank(), 6, 1000);
    const Status status = co_await api.run(allreduce("grad", tensor));
    if (status) {
      require(round < rounds, "an allreduce completed without rank " + std::to_string(last));
      require_sum(tensor, everybody(api.size()), 6, "grad");
      continue;
    }
    require(round >= rounds - 1, "failed too early, in round " + std::to_string(round) + ": " + status.to_string());
    require(status.code() == Code::kPeerLost, "expected a lost peer, got " + status.to_string());
    require(status.text().find("rank " + std::to_string(last)) != std::string_view::npos,
            "the error does not name the rank: " + status.to_string());
    co_return;
  }
}

}  // namespace

ScenarioFn broadcast_ahead(std::uint64_t seed, int uses) {
  return [=](RankApi& api) { return run_broadcast_ahead(api, seed, uses); };
}
ScenarioFn named_operations(std::uint64_t seed, int rounds) {
  return [=](RankApi& api) { return run_named(api, seed, rounds); };
}
ScenarioFn changing_shapes(std::uint64_t seed, int rounds) {
  return [=](RankApi& api) { return run_changing(api, seed, rounds); };
}
ScenarioFn mismatch_and_recover(std::uint64_t seed, int bad_round) {
  return [=](RankApi& api) { return run_mismatch(api, seed, bad_round); };
}
ScenarioFn stuck_and_recover() {
  return [](RankApi& api) { return run_stuck(api); };
}
ScenarioFn late_rank(Duration lateness) {
  return [=](RankApi& api) { return run_late(api, lateness); };
}
ScenarioFn dying_rank(int rounds, Rank who) {
  return [=](RankApi& api) { return run_gone(api, rounds, true, who); };
}
ScenarioFn leaving_rank(int rounds, Rank who) {
  return [=](RankApi& api) { return run_gone(api, rounds, false, who); };
}
ScenarioFn first_use(int names) {
  return [=](RankApi& api) { return run_first_use(api, names); };
}

}  // namespace sirtaki::scenarios
