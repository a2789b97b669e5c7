// scale_sim RANKS FANOUT SEED [SCENARIO...]: runs the scale scenarios in virtual time and prints one JSON object per
// line. benchmarks/measuring.md states the costs of a message.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/json.h"
#include "tests/scenarios/scale_scenarios.h"

namespace sirtaki::scenarios {
namespace {

world::SimOptions world_options(const std::string& scenario, int ranks, int fanout, std::uint64_t seed) {
  world::SimOptions options;
  options.seed = seed;
  options.size = ranks;
  options.min_delay = options.max_delay = std::chrono::microseconds(100);
  options.bytes_per_second = 125e6;
  // A stream has 161 tensors of 16 bytes that stand for 6 MB, in about 20 partitions.
  const bool steps = scenario == "steady_state" || scenario == "plan_change" || scenario == "unused_parameter";
  options.abstract_net = world::AbstractCosts{std::chrono::microseconds(100), 125e6, steps ? 6e6 / (161 * 16) : 1.0};
  options.engine.layout.fusion_bytes = 128;
  options.engine.layout.partition_bytes = 4096;
  options.control.fanout = fanout;
  options.control.send_cost = std::chrono::microseconds(5);
  options.control.receive_cost = std::chrono::microseconds(10);
  options.control.item_cost = std::chrono::microseconds(1);
  return options;
}

template <class Value>
double most(const ScaleResult& result, Value value) {
  double largest = 0;
  for (const world::Traffic& traffic : result.ranks) {
    largest = std::max(largest, static_cast<double>(value(traffic)));
  }
  return largest;
}

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void print(const ScaleResult& result, int ranks, int fanout, std::uint64_t seed, double wall) {
  std::vector<Duration> took = result.took;
  std::ranges::sort(took);
  JsonWriter json;
  const auto number = [&](const char* key, double value) { json.key(key).value(value); };
  json.begin_object().key("scenario").value(result.scenario);
  json.key("ranks").value(ranks).key("fanout").value(fanout).key("seed").value(seed);
  number("hub_received", static_cast<double>(result.coordinator.received));
  number("hub_sent", static_cast<double>(result.coordinator.sent));
  number("hub_membership", static_cast<double>(result.coordinator.membership));
  number("hub_bytes_received", static_cast<double>(result.coordinator.bytes_received));
  number("hub_bytes_sent", static_cast<double>(result.coordinator.bytes_sent));
  number("hub_busy", seconds(result.coordinator.busy));
  std::vector<std::uint64_t> messages;
  for (const world::Traffic& traffic : result.ranks) {
    messages.push_back(traffic.sent + traffic.received - traffic.membership);
  }
  std::ranges::sort(messages);
  number("rank_messages", static_cast<double>(messages.back()));
  number("rank_messages_median", static_cast<double>(messages[messages.size() / 2]));
  number("rank_received", most(result, [](const world::Traffic& t) { return t.received; }));
  number("rank_sent", most(result, [](const world::Traffic& t) { return t.sent; }));
  number("rank_busy", most(result, [](const world::Traffic& t) { return seconds(t.busy); }));
  number("slowest", seconds(took.back()));
  number("median", seconds(took[took.size() / 2]));
  number("data_operations", static_cast<double>(result.data_operations));
  number("wall", wall);
  json.end_object();
  std::printf("%s\n", json.text().c_str());
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: scale_sim RANKS FANOUT SEED [SCENARIO...]\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const int fanout = std::atoi(argv[2]);
  const auto seed = static_cast<std::uint64_t>(std::atoll(argv[3]));
  std::vector<std::string> chosen(argv + 4, argv + argc);
  if (chosen.empty()) {
    chosen = scale_scenarios();
  }
  for (const std::string& scenario : chosen) {
    if (std::ranges::find(scale_scenarios(), scenario) == scale_scenarios().end()) {
      std::fprintf(stderr, "there is no scenario '%s'\n", scenario.c_str());
      return 2;
    }
    const auto begin = std::chrono::steady_clock::now();
    const ScaleResult result = run_scale(scenario, world_options(scenario, ranks, fanout, seed), {});
    if (!result.error.empty()) {
      std::fprintf(stderr, "%s with %d ranks, fan-out %d: %s\n", scenario.c_str(), ranks, fanout, result.error.c_str());
      return 1;
    }
    print(result, ranks, fanout, seed, seconds(std::chrono::steady_clock::now() - begin));
  }
  return 0;
}

}  // namespace
}  // namespace sirtaki::scenarios

int main(int argc, char** argv) {
  return sirtaki::scenarios::run(argc, argv);
}
