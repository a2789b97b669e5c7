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

// Properties of an epoch, drawn equally by all ranks.
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
  // Returns the rank that gives `step` up, one of those that take it.
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
  // Returns for each rank whether it contributes `tensor` to a step.
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
      // A step that was given up is repeated, so that the ranks keep their counts.
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
      std::vector<bool> active;
      for (Rank r = 0; r < api.size(); ++r) {
        active.push_back(epoch.steps(r) > s);
      }
      Owned loss = filled(api.rank(), epoch.salt(s), 5);
      // A rank that has joined cannot contribute to tensors on a device.
      require_ok(co_await api.wait(api.submit_on_host(allreduce("loss", loss))), what + ", the loss");
      require_sum(loss, active, epoch.salt(s), what + ", the loss");
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
    // All ranks received the same last rank, and operations by name work again.
    Owned last_rank{{static_cast<float>(*last)}};
    require_ok(co_await api.run(allreduce("last", last_rank)), what + ", after joining");
    require(last_rank.values.front() == static_cast<float>(*last * api.size()), what + ": received another last rank");
  }
}

// Operations by name of one round: some ranks of `members` have run out of data before.
struct JoinedOp {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  std::string name;
  std::vector<Rank> members;
  std::vector<bool> active;  // members that submit it, indexed by rank of the job
  Rank root = 0;
  std::uint64_t salt = 0;
  std::size_t count = 0;
  Owned tensor;
  std::uint64_t request = 0;

  bool has(Rank rank) const { return std::ranges::find(members, rank) != members.end(); }
  std::size_t place(Rank rank) const {
    return static_cast<std::size_t>(std::ranges::find(members, rank) - members.begin());
  }
  // Returns whether it ends with an error because a rank has joined that cannot contribute zeros.
  bool refused() const {
    const bool lacking = std::ranges::any_of(members, [&](Rank r) { return !active[static_cast<std::size_t>(r)]; });
    return (kind == OpKind::kBroadcast && !active[static_cast<std::size_t>(root)]) ||
           (kind == OpKind::kAllreduce && op == ReduceOp::kMax && lacking);
  }
};

JoinedOp draw_joined_op(std::uint64_t seed, std::uint64_t n, const std::vector<bool>& has_data) {
  JoinedOp op;
  // Most operations repeat every round, and so need no further message when a rank joins.
  const std::uint64_t pick = shared_draw(seed, n % 5, n % 7 == 6 ? 1000 + n : 72);
  op.kind = static_cast<OpKind>(pick % kOpKindCount);
  op.op = pick / 8 % 3 == 0 ? ReduceOp::kAverage : pick / 8 % 3 == 1 ? ReduceOp::kMax : ReduceOp::kSum;
  op.op = op.kind == OpKind::kAllreduce ? op.op : ReduceOp::kSum;
  op.name = "op" + std::to_string(n % 5);
  for (std::size_t r = 0; r < has_data.size(); ++r) {
    if (pick / 64 % 3 != 0 || shared_draw(seed, r, 73 + n % 5) % 2 == 0) {
      op.members.push_back(static_cast<Rank>(r));
    }
  }
  op.active.resize(has_data.size());
  for (const Rank rank : op.members) {
    op.active[static_cast<std::size_t>(rank)] = has_data[static_cast<std::size_t>(rank)];
  }
  op.root = op.members.empty() ? 0 : op.members[pick / 512 % op.members.size()];
  op.salt = n % 91;
  op.count = (pick / 4096 % 8 + 1) * has_data.size() * std::max(op.members.size(), std::size_t{1});
  return op;
}

void submit_joined_op(RankApi& api, JoinedOp& op) {
  op.tensor = filled(api.rank(), op.salt, op.count);
  engine::OpSpec spec = allreduce(op.name, op.tensor);
  spec.kind = op.kind;
  spec.reduce_op = op.op;
  spec.root = op.root;
  if (op.members.size() < op.active.size()) {
    spec.ranks = op.members;
  }
  if (op.kind != OpKind::kAllreduce && op.kind != OpKind::kBroadcast) {
    spec.output = {};
  }
  op.request = api.submit_on_host(std::move(spec));
}

std::vector<float> expected_joined(const JoinedOp& op, Rank me) {
  std::vector<float> expected;
  const std::size_t block = op.count / op.members.size();
  const std::size_t own = block * op.place(me);
  const auto append = [&](Rank rank, std::size_t begin, std::size_t count) {
    const Owned part = filled(rank, op.salt, op.count);
    const auto from = part.values.begin() + static_cast<std::ptrdiff_t>(begin);
    expected.insert(expected.end(), from, from + static_cast<std::ptrdiff_t>(count));
  };
  switch (op.kind) {
    case OpKind::kAllreduce:
      for (std::size_t i = 0; i < op.count; ++i) {
        float value = sum_over(op.active, op.salt, i);
        if (op.op == ReduceOp::kMax) {
          value = 0;
          for (const Rank rank : op.members) {
            value = std::max(value, value_of(rank, op.salt, i));
          }
        }
        expected.push_back(op.op == ReduceOp::kAverage ? value / static_cast<float>(op.members.size()) : value);
      }
      break;
    case OpKind::kBroadcast:
      append(op.root, 0, op.count);
      break;
    case OpKind::kReduceScatter:
      for (std::size_t i = own; i < own + block; ++i) {
        expected.push_back(sum_over(op.active, op.salt, i));
      }
      break;
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
      for (const Rank rank : op.members) {
        if (op.active[static_cast<std::size_t>(rank)]) {
          op.kind == OpKind::kAllgather ? append(rank, 0, op.count) : append(rank, own, block);
        }
      }
      break;
    case OpKind::kBarrier:
      break;
  }
  return expected;
}

void check_joined_op(RankApi& api, const JoinedOp& op, const Status& status, const std::string& what) {
  if (op.refused()) {
    require(status.code() == Code::kMismatch, what + ": expected an error, got " + status.to_string());
    for (const char* word : {"'op", "rank ", "join()"}) {
      require(status.text().find(word) != std::string_view::npos,
              "the error does not say " + std::string(word) + ": " + status.to_string());
    }
    return;
  }
  require_ok(status, what);
  std::vector<float> values = op.tensor.values;
  if (op.kind != OpKind::kAllreduce && op.kind != OpKind::kBroadcast) {
    const engine::OpResult& result = api.result(op.request);
    values.resize(result.data.size() / sizeof(float));
    std::ranges::copy(result.data, reinterpret_cast<std::byte*>(values.data()));
  }
  require(op.kind == OpKind::kBarrier || values == expected_joined(op, api.rank()),
          what + ": wrong " + std::string(op_kind_name(op.kind)));
}

// In every epoch ranks have different numbers of rounds, each of several operations by name.
Scenario run_names(RankApi& api, std::uint64_t seed) {
  std::uint64_t number = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const auto rounds = [&](Rank rank) {
      return shared_draw(seed, epoch * 100 + static_cast<std::uint64_t>(rank), 71) % 4;
    };
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::vector<bool> has_data;
      for (Rank rank = 0; rank < api.size(); ++rank) {
        has_data.push_back(rounds(rank) > round);
      }
      std::vector<JoinedOp> ops;
      for (int i = 0; i < 4; ++i) {
        ops.push_back(draw_joined_op(seed, number++, has_data));
      }
      if (!has_data[static_cast<std::size_t>(api.rank())]) {
        continue;
      }
      require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 2000)), "computing");
      std::erase_if(ops, [&](const JoinedOp& op) { return !op.has(api.rank()); });
      for (JoinedOp& op : ops) {
        submit_joined_op(api, op);
      }
      for (const int i : shuffled(static_cast<int>(ops.size()), api.random())) {
        const JoinedOp& op = ops[static_cast<std::size_t>(i)];
        const Status status = co_await api.wait(op.request);
        check_joined_op(api, op, status, "epoch " + std::to_string(epoch) + ", round " + std::to_string(round));
      }
    }
    const Result<Rank> last = co_await api.join();
    require_ok(last.status(), "joining");
    Owned last_rank{{static_cast<float>(*last)}};
    require_ok(co_await api.run(allreduce("last", last_rank)), "after joining");
    require(last_rank.values.front() == static_cast<float>(*last * api.size()), "received another last rank");
  }
}

// Joins with an operation of a new name in flight, and with a stream that cannot be opened.
Scenario run_left_in_flight(RankApi& api, std::uint64_t seed) {
  for (int round = 0; round < 3; ++round) {
    const auto who = static_cast<Rank>(shared_draw(seed, static_cast<std::uint64_t>(round), 91) %
                                       static_cast<std::uint64_t>(api.size()));
    const auto salt = static_cast<std::uint64_t>(round);
    Owned loss = filled(api.rank(), salt, 8);
    std::uint64_t request = 0;
    if (api.rank() == who) {
      request = api.submit(allreduce("loss", loss));
    } else if (round == 1) {
      require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 2000)), "computing");
    }
    const Result<Rank> last = co_await api.join();
    require_ok(last.status(), "joining");
    if (api.rank() == who) {
      require_ok(co_await api.wait(request), "what was in flight");
      std::vector<bool> alone(static_cast<std::size_t>(api.size()));
      alone[static_cast<std::size_t>(who)] = true;
      require_sum(loss, alone, salt, "what was in flight");
    }
    Owned again = filled(api.rank(), 4, 8);
    require_ok(co_await api.run(allreduce("loss", again)), "after");
    require_sum(again, everybody(api.size()), 4, "loss");
  }
  if (api.rank() != 0) {
    const Result<StreamId> stream = co_await api.open_stream(join_spec(seed, "late"));
    require(stream.status().text().find("rank 0") != std::string_view::npos,
            "opening a stream gives " + stream.status().to_string());
  }
  require_ok((co_await api.join()).status(), "joining at the end");
}

// One rank gives up a step before it joins; the others have not begun that step.
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
ScenarioFn left_in_flight_before_joining(std::uint64_t seed) {
  return [=](RankApi& api) { return run_left_in_flight(api, seed); };
}
ScenarioFn given_up_before_joining(std::uint64_t seed) {
  return [=](RankApi& api) { return run_given_up(api, seed); };
}
ScenarioFn gone_while_joined(int steps, bool dies) {
  return [=](RankApi& api) { return run_gone(api, steps, dies); };
}

}  // namespace sirtaki::scenarios
