// Synthetic layer tables for the scheduler's tests: shapes of the models that communication papers use, in a sixteenth
// of their size, with the profile that a step of them has over a link of given relative speed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/plan/planner.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::scheduler {

struct Layer {
  std::int64_t weights = 0;
  std::int64_t biases = 0;
  std::int64_t compute = 1;  // share of the forward time
};

struct Table {
  std::string name;
  std::vector<Layer> layers;  // in forward order
};

// Nearly all bytes in three layers at the end, which are ready first and needed last.
inline Table vgg_table() {
  Table table{"vgg", {}};
  const std::int64_t channels[] = {64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512};
  std::int64_t before = 3;
  for (const std::int64_t now : channels) {
    table.layers.push_back({before * now * 9 / 16, now / 16, now == 64 && before == 3 ? 1 : now == 512 ? 3 : 6});
    before = now;
  }
  table.layers.push_back({25088 * 4096 / 16, 4096 / 16, 4});
  table.layers.push_back({4096 * 4096 / 16, 4096 / 16, 1});
  table.layers.push_back({4096 * 1000 / 16, 1000 / 16, 1});
  return table;
}

// Many small layers of equal time, bytes growing towards the end.
inline Table resnet_table() {
  Table table{"resnet", {{3 * 64 * 49 / 16, 128 / 16, 2}}};
  const std::int64_t blocks[] = {3, 4, 6, 3};
  for (std::int64_t stage = 0; stage < 4; ++stage) {
    const std::int64_t width = std::int64_t{64} << stage;
    for (std::int64_t i = 0; i < blocks[stage]; ++i) {
      table.layers.push_back({width * width * 4 / 16, width * 2 / 16, 1});
      table.layers.push_back({width * width * 9 / 16, width * 2 / 16, 2});
      table.layers.push_back({width * width * 4 / 16, width * 8 / 16, 1});
    }
  }
  table.layers.push_back({2048 * 1000 / 16, 1000 / 16, 1});
  return table;
}

// A fifth of the bytes in the first layer, which is ready last and needed first.
inline Table bert_table() {
  Table table{"bert", {{(30522 + 512 + 2) * 768 / 16, 768 * 2 / 16, 1}}};
  for (int i = 0; i < 12; ++i) {
    for (int j = 0; j < 4; ++j) {
      table.layers.push_back({768 * 768 / 16, 768 / 16, 2});
    }
    table.layers.push_back({768 * 2 / 16, 768 * 2 / 16, 1});
    table.layers.push_back({768 * 3072 / 16, 3072 / 16, 8});
    table.layers.push_back({768 * 3072 / 16, 768 / 16, 8});
  }
  return table;
}

struct Workload {
  std::string name;
  std::vector<PlannedTensor> tensors;  // forward order
  std::vector<int> backward_order;
  StepProfile profile;
  PlannerOptions options;
};

// `ratio_permille`: communication of all bytes over one step's computing. Backward takes twice as long as forward.
inline Workload make_workload(const Table& table, std::int64_t step_compute_us, std::int64_t ratio_permille,
                              std::int64_t latency_ns = 100'000) {
  Workload w;
  w.name = table.name + " at " + std::to_string(ratio_permille) + " permille";
  w.options.ranks = 4;
  std::int64_t shares = 0;
  std::int64_t bytes = 0;
  for (const Layer& layer : table.layers) {
    shares += layer.compute;
    bytes += 4 * (layer.weights + layer.biases);
  }
  const std::int64_t forward = step_compute_us / 3;
  const std::int64_t first_ready = 2 * forward * table.layers.back().compute / shares;
  std::int64_t computed = 0;  // shares of the layers before
  for (std::size_t i = 0; i < table.layers.size(); ++i) {
    const Layer& layer = table.layers[i];
    for (const auto& [kind, numel] : {std::pair("weight", layer.weights), std::pair("bias", layer.biases)}) {
      w.tensors.push_back({std::to_string(i) + "." + kind, numel, DType::kF32});
      w.profile.need_us.push_back(forward * computed / shares);
      w.profile.ready_us.push_back(2 * forward * (shares - computed) / shares - first_ready);
    }
    computed += layer.compute;
  }
  w.backward_order.resize(w.tensors.size());
  std::iota(w.backward_order.rbegin(), w.backward_order.rend(), 0);
  w.profile.backward_us = 2 * forward - first_ready;
  w.profile.forward_us = forward + first_ready;
  w.profile.latency_ns = latency_ns;
  const std::int64_t wire = 2 * (w.options.ranks - 1) * bytes / w.options.ranks;
  w.profile.bytes_per_second = wire * 1'000'000 / (step_compute_us * ratio_permille / 1000);
  return w;
}

// Returns the first plan of the stream.
inline std::shared_ptr<const Plan> first_plan(const Workload& w) {
  auto plan = Plan::build(w.tensors, w.backward_order, w.options.limits, 1);
  return plan ? *plan : nullptr;
}

}  // namespace sirtaki::scheduler
