// Helpers of scenarios of one stream: its tensors, the gradients of a rank in a step, and deviations of a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {

inline constexpr int kTensors = 24;

inline engine::StreamSpec make_spec(std::uint64_t seed) {
  engine::StreamSpec spec;
  spec.name = "optimizer";
  spec.reduce_op = ReduceOp::kSum;
  for (int i = 0; i < kTensors; ++i) {
    engine::StreamTensor tensor;
    tensor.name = "layer" + std::to_string(i);
    // Sizes from zero over small tensors that share a partition to big ones that are cut.
    const std::uint64_t draw = shared_draw(seed, static_cast<std::uint64_t>(i), 21);
    const std::int64_t sizes[] = {0, 1, 7, 64, 300, 5000, 20000};
    tensor.dims = {sizes[draw % 7]};
    spec.tensors.push_back(std::move(tensor));
  }
  return spec;
}

// Kind of a step, the same on all ranks: complete, without some of the gradients, or given up by a rank.
enum class Turn : std::uint8_t { kGood, kAbsent, kAborted, kWrongSize };

// Tensors of the stream on one rank in one step.
struct Step {
  std::vector<Owned> tensors;
  std::vector<std::vector<bool>> contributes;  // index: tensor, rank

  Step(const RankApi& api, const engine::StreamSpec& spec, std::uint64_t salt, std::uint64_t seed, bool some_absent) {
    for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
      std::vector<bool> who = everybody(api.size());
      for (std::size_t r = 0; some_absent && r < who.size(); ++r) {
        who[r] = shared_draw(seed, salt * 100 + t, 40 + r) % 4 != 0;
      }
      const auto count = static_cast<std::size_t>(spec.tensors[t].dims.front());
      Owned tensor = filled(api.rank(), salt + t, count);
      if (!who[static_cast<std::size_t>(api.rank())]) {
        std::fill(tensor.values.begin(), tensor.values.end(), 0.0F);
      }
      tensors.push_back(std::move(tensor));
      contributes.push_back(std::move(who));
    }
  }

  void check(std::uint64_t salt, const std::vector<std::uint8_t>& used, bool some_absent,
             const std::string& what) const {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::string name = what + ", tensor " + std::to_string(t);
      require_sum(tensors[t], contributes[t], salt + t, name);
      const bool any = std::find(contributes[t].begin(), contributes[t].end(), true) != contributes[t].end();
      require(!some_absent || (used[t] != 0) == any, name + ": wrong about who used it");
    }
  }
};

inline void submit_step(RankApi& api, StreamId stream, Step& step) {
  const auto me = static_cast<std::size_t>(api.rank());
  std::vector<int> absent;
  for (const int t : shuffled(static_cast<int>(step.tensors.size()), api.random())) {
    const auto i = static_cast<std::size_t>(t);
    if (step.contributes[i][me]) {
      api.ready(stream, t, step.tensors[i].view(), false);
    } else {
      absent.push_back(t);
    }
  }
  for (const int t : absent) {
    api.ready(stream, t, step.tensors[static_cast<std::size_t>(t)].view(), true);
  }
  api.finish(stream);
}

// Gives the step up on one rank, in the middle of it.
inline void deviate(RankApi& api, StreamId stream, Step& step, bool wrong_size) {
  // abort() comes after the last gradient: even then no other rank may complete the step.
  const int until = wrong_size ? kTensors / 2 : 0;
  for (int t = kTensors - 1; t >= until; --t) {
    api.ready(stream, t, step.tensors[static_cast<std::size_t>(t)].view(), false);
  }
  if (wrong_size) {
    TensorView view = step.tensors[0].view();
    view.numel += 1;  // the engine refuses the tensor without touching it
    api.ready(stream, 0, view, false);
  }
}

}  // namespace sirtaki::scenarios
