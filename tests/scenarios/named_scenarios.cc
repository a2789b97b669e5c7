#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/adasum/adasum.h"
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

// One operation of a kind chosen by `pick`, with its expected result.
struct Planned {
  OpKind kind = OpKind::kAllreduce;
  std::vector<Rank> ranks;  // participants
  std::uint64_t salt = 0;
  std::size_t count = 0;
  Owned tensor;
  std::uint64_t request = 0;

  std::size_t place(Rank rank) const {
    return static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
  }
  Rank root(std::uint64_t pick) const { return ranks[pick % ranks.size()]; }
};

Planned submit_planned(RankApi& api, const std::string& name, std::uint64_t pick, const std::vector<Rank>& ranks) {
  Planned op;
  op.kind = static_cast<OpKind>(pick % kOpKindCount);
  op.ranks = ranks;
  op.salt = pick % 101;
  op.count = (pick / 7) % 40;
  if (op.kind == OpKind::kAllgather) {
    op.count += op.place(api.rank());  // another first dimension on each rank
  } else if (op.kind == OpKind::kAlltoall) {
    op.count = (op.count / ranks.size() + 1) * ranks.size();
  }
  op.tensor = filled(api.rank(), op.salt, op.count);
  engine::OpSpec spec = base_spec(op.kind, name, op.tensor);
  if (static_cast<int>(ranks.size()) < api.size()) {
    spec.ranks = ranks;
  }
  if (op.kind == OpKind::kBroadcast) {
    spec.root = op.root(pick);
  }
  if (op.kind == OpKind::kAllreduce || op.kind == OpKind::kBroadcast) {
    spec.output = spec.input;
  }
  op.request = api.submit(std::move(spec));
  return op;
}

void check_planned(RankApi& api, const Planned& op, std::uint64_t pick, const std::string& name) {
  const std::size_t size = op.ranks.size();
  const std::size_t me = op.place(api.rank());
  std::vector<bool> members(static_cast<std::size_t>(api.size()));
  for (const Rank rank : op.ranks) {
    members[static_cast<std::size_t>(rank)] = true;
  }
  std::vector<float> expected;
  switch (op.kind) {
    case OpKind::kAllreduce:
      require_sum(op.tensor, members, op.salt, name);
      return;
    case OpKind::kBroadcast:
      require(op.tensor.values == filled(op.root(pick), op.salt, op.count).values, name + ": wrong broadcast");
      return;
    case OpKind::kAllgather:
      for (std::size_t p = 0; p < size; ++p) {
        const Owned part = filled(op.ranks[p], op.salt, op.count - me + p);
        expected.insert(expected.end(), part.values.begin(), part.values.end());
      }
      break;
    case OpKind::kAlltoall: {
      const std::size_t block = op.count / size;
      for (const Rank rank : op.ranks) {
        const Owned all = filled(rank, op.salt, op.count);
        const auto begin = all.values.begin() + static_cast<std::ptrdiff_t>(block * me);
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(block));
      }
      break;
    }
    case OpKind::kReduceScatter: {
      const std::size_t begin = me * (op.count / size) + std::min(me, op.count % size);
      const std::size_t rows = op.count / size + (me < op.count % size ? 1 : 0);
      for (std::size_t i = begin; i < begin + rows; ++i) {
        expected.push_back(sum_over(members, op.salt, i));
      }
      break;
    }
    case OpKind::kBarrier:
      return;
  }
  require(floats_of(api.result(op.request)) == expected, name + ": wrong " + std::string(op_kind_name(op.kind)));
}

// The root of a broadcast waits for no rank: it sends all pieces before the others have begun, several with one tag.
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

// Returns the ranks that take part in operation `n`: all, or some.
std::vector<Rank> drawn_set(std::uint64_t seed, int n, int size, bool sets) {
  std::vector<Rank> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Rank> some;
  for (const Rank rank : all) {
    if (shared_draw(seed, static_cast<std::uint64_t>(n), 1000 + static_cast<std::uint64_t>(rank)) % 2 == 0) {
      some.push_back(rank);
    }
  }
  return sets && n % 4 != 0 && !some.empty() ? some : all;
}

Scenario run_named(RankApi& api, std::uint64_t seed, int rounds, bool sets) {
  constexpr int kNames = 8;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::optional<Planned>> ops(kNames);
    // Most rounds repeat the operation, so that the fast path is used; some use another one under the same name.
    const std::uint64_t era = shared_draw(seed, static_cast<std::uint64_t>(round), 5) % 4 == 0 ? 1 + round : 0;
    for (const int n : shuffled(kNames, api.random())) {
      const std::vector<Rank> ranks = drawn_set(seed, n, api.size(), sets);
      if (std::ranges::find(ranks, api.rank()) != ranks.end()) {
        // Two sets use one name.
        const bool shared = sets && ranks != drawn_set(seed, n ^ 1, api.size(), sets);
        const std::string name = shared ? "shared" + std::to_string(n / 2) : "op" + std::to_string(n);
        const std::uint64_t pick = shared_draw(seed, static_cast<std::uint64_t>(n), era);
        ops[static_cast<std::size_t>(n)] = submit_planned(api, name, pick, ranks);
      }
    }
    for (const int n : shuffled(kNames, api.random())) {
      const std::optional<Planned>& op = ops[static_cast<std::size_t>(n)];
      if (op) {
        const std::string name = "op" + std::to_string(n) + " in round " + std::to_string(round);
        require_ok(co_await api.wait(op->request), name);
        check_planned(api, *op, shared_draw(seed, static_cast<std::uint64_t>(n), era), name);
      }
    }
  }
  // Ranks end at different times: the root of a broadcast may be done before the others have begun.
  require_ok(co_await api.leave(), "leaving");
}

// Two ranks of a set disagree, which does not affect other ranks; then all continue.
Scenario run_set_mismatch(RankApi& api) {
  const std::vector<Rank> pair = {0, api.size() - 1};
  for (int round = 0; round < 3; ++round) {
    const bool member = api.rank() == pair[0] || api.rank() == pair[1];
    if (member) {
      const bool bad = round == 1;
      Owned tensor = filled(api.rank(), 1, bad && api.rank() == pair[1] ? 6 : 4);
      engine::OpSpec spec = allreduce("grad", tensor);
      spec.ranks = pair;
      const Status status = co_await api.run(std::move(spec));
      if (!bad) {
        require_ok(status, "round " + std::to_string(round));
        std::vector<bool> members(static_cast<std::size_t>(api.size()));
        members.front() = members.back() = true;
        require_sum(tensor, members, 1, "grad");
      } else {
        require(status.code() == Code::kMismatch, "expected a mismatch, got " + status.to_string());
        for (const std::string& word : {std::string("grad of ranks 0, "), std::string("[4]"), std::string("[6]")}) {
          require(status.text().find(word) != std::string_view::npos,
                  "the error does not say " + word + ": " + status.to_string());
        }
      }
    }
    Owned all = filled(api.rank(), 2, 5);
    require_ok(co_await api.run(allreduce("grad", all)), "all ranks");
    require_sum(all, everybody(api.size()), 2, "all ranks");
  }
}

// Some names come once, some repeatedly, some always; the root of a broadcast does not wait for the others.
Scenario run_many_names(RankApi& api, std::uint64_t seed, int uses) {
  for (int use = 0; use < uses; ++use) {
    const auto place = static_cast<std::uint64_t>(use);
    std::vector<Planned> ops;
    std::vector<std::uint64_t> picks;
    for (std::uint64_t n = 0; n < 3; ++n) {
      const std::uint64_t draw = shared_draw(seed, place, n);
      const std::string name = draw % 4 == 0   ? "always" + std::to_string(n)
                               : draw % 4 == 1 ? "again" + std::to_string(draw / 4 % 40)
                                               : "once" + std::to_string(use) + "." + std::to_string(n);
      const std::vector<Rank> ranks = drawn_set(seed, static_cast<int>(draw / 1024 % 5), api.size(), true);
      if (std::ranges::find(ranks, api.rank()) == ranks.end()) {
        continue;
      }
      picks.push_back(shared_draw(seed, std::hash<std::string>()(name), 3));
      ops.push_back(submit_planned(api, name, picks.back(), ranks));
    }
    if (api.random()() % 8 == 0) {
      require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 3000)), "computing");
    }
    for (std::size_t i = 0; i < ops.size(); ++i) {
      require_ok(co_await api.wait(ops[i].request), "use " + std::to_string(use));
      check_planned(api, ops[i], picks[i], "use " + std::to_string(use));
    }
  }
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
    if (status.ok()) {
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

std::vector<float> adasum_of(int size, std::uint64_t salt, std::size_t count) {
  std::vector<Owned> tensors;
  std::vector<const std::byte*> arrays;
  for (Rank rank = 0; rank < size; ++rank) {
    tensors.push_back(filled(rank, salt, count));
  }
  for (const Owned& tensor : tensors) {
    arrays.push_back(reinterpret_cast<const std::byte*>(tensor.values.data()));
  }
  const auto n = static_cast<std::int64_t>(count);
  std::vector<double> products(kernels::dot_product_count(arrays.size()));
  kernels::add_dot_products(DType::kF32, arrays, n, products);
  std::vector<float> sum(count);
  kernels::weighted_sum(DType::kF32, arrays, kernels::adasum_weights(products, arrays.size()),
                        reinterpret_cast<std::byte*>(sum.data()), n);
  return sum;
}

// Sometimes a rank submits another operation; then one dies in the middle of one.
Scenario run_adasum(RankApi& api, std::uint64_t seed, int rounds) {
  const Rank last = api.size() - 1;
  for (int round = 0; round < rounds; ++round) {
    const auto place = static_cast<std::uint64_t>(round);
    const bool wrong = shared_draw(seed, place, 71) % 5 == 0;
    const std::size_t count = shared_draw(seed, place, 72) % (round == 1 ? 200000 : 300);
    Owned tensor = filled(api.rank(), place, count);
    engine::OpSpec spec = allreduce("change", tensor);
    spec.reduce_op = wrong && api.rank() == last ? ReduceOp::kSum : ReduceOp::kAdasum;
    const Status status = co_await api.run(std::move(spec));
    const std::string what = "round " + std::to_string(round);
    if (round == rounds - 1 && status.code() == Code::kPeerLost) {
      co_return;  // the last rank is further, and dead
    }
    if (wrong) {
      require(status.code() == Code::kMismatch, what + ": expected a mismatch, got " + status.to_string());
      continue;
    }
    require_ok(status, what);
    const std::vector<float> expected = adasum_of(api.size(), place, count);
    for (std::size_t i = 0; i < count; ++i) {
      require(std::abs(tensor.values[i] - expected[i]) < 1e-4F, what + ": wrong Adasum");
    }
  }
  for (;;) {
    Owned tensor = filled(api.rank(), 6, 1000);
    engine::OpSpec spec = allreduce("change", tensor);
    spec.reduce_op = ReduceOp::kAdasum;
    if (api.rank() == last) {
      api.submit(std::move(spec));
      require_ok(co_await api.compute(std::chrono::microseconds(seed % 3000)), "computing");
      api.die();
      co_await api.compute(std::chrono::hours(1));
    }
    const Status status = co_await api.run(std::move(spec));
    if (!status.ok()) {
      require(status.code() == Code::kPeerLost, "expected a lost peer, got " + status.to_string());
      co_return;
    }
  }
}

}  // namespace

ScenarioFn adasum_and_death(std::uint64_t seed, int rounds) {
  return [=](RankApi& api) { return run_adasum(api, seed, rounds); };
}

ScenarioFn many_names(std::uint64_t seed, int uses) {
  return [=](RankApi& api) { return run_many_names(api, seed, uses); };
}
ScenarioFn broadcast_ahead(std::uint64_t seed, int uses) {
  return [=](RankApi& api) { return run_broadcast_ahead(api, seed, uses); };
}
ScenarioFn named_operations(std::uint64_t seed, int rounds) {
  return [=](RankApi& api) { return run_named(api, seed, rounds, false); };
}

ScenarioFn process_sets(std::uint64_t seed, int rounds) {
  return [seed, rounds](RankApi& api) { return run_named(api, seed, rounds, true); };
}

ScenarioFn set_mismatch() {
  return [](RankApi& api) { return run_set_mismatch(api); };
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
