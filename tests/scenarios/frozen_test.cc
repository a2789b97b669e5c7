// Digests of simulated jobs, compared with the committed ones: a change of structure leaves every digest unchanged.
//
// `frozen_test --write FILE` rewrites them, for a change that is meant to alter messages, plans or results.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/sim_expect.h"
#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {
namespace {

using Seed = std::uint64_t;

struct Frozen {
  const char* name;
  Seed seeds;
  int smallest;  // smallest number of ranks; further seeds add ranks
  int spread;
  ScenarioFn (*scenario)(Seed);
};

constexpr Frozen kFrozen[] = {
    {"everything", 300, 1, 5, [](Seed seed) { return everything(seed, 3); }},
    {"named_operations", 100, 1, 5, [](Seed seed) { return named_operations(seed, 6); }},
    {"process_sets", 100, 2, 5, [](Seed seed) { return process_sets(seed, 6); }},
    {"stream_of_a_set", 50, 2, 5, [](Seed seed) { return stream_of_a_set(seed, 24); }},
    {"stream_replanned", 40, 2, 3, [](Seed seed) { return stream_replanned(seed, 20, {}); }},
    {"stream_unused", 80, 1, 5, [](Seed seed) { return stream_unused(seed, 6); }},
    {"stream_deviations", 80, 1, 5, [](Seed seed) { return stream_deviations(seed, 12); }},
    {"stream_forward", 80, 1, 5, [](Seed seed) { return stream_forward(seed, 8); }},
    {"uneven_epochs", 60, 1, 5, [](Seed seed) { return uneven_epochs(seed, 3); }},
    {"compressed_steps", 55, 1, 5,
     [](Seed seed) {
       CompressedRun run = run_of(seed, 12);
       run.wild = true;
       return compressed_steps(run);
     }},
    {"compressed_balance", 55, 1, 5, [](Seed seed) { return compressed_balance(run_of(seed, 6)); }},
};

std::string line_of(const std::string& name, Seed seed, std::uint64_t digest) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(digest));
  return name + " " + std::to_string(seed) + " " + hex;
}

// Returns one line for each seed: the scenario, the seed, the digest.
std::vector<std::string> run(const Frozen& frozen) {
  std::vector<std::string> lines;
  for (Seed seed = 1; seed <= frozen.seeds; ++seed) {
    world::Recorder recorder;
    world::SimOptions options =
        small_limits(seed, frozen.smallest + static_cast<int>(seed % static_cast<Seed>(frozen.spread)));
    options.recorder = &recorder;
    world::SimWorld world(options);
    EXPECT_EQ(world.run(frozen.scenario(seed)), "");
    lines.push_back(line_of(frozen.name, seed, recorder.digest()));
  }
  return lines;
}

std::vector<std::string> committed() {
  std::ifstream file(FROZEN_DIGESTS);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

class FrozenTest : public testing::TestWithParam<Frozen> {};

TEST_P(FrozenTest, MessagesPlansAndResultsAreTheCommittedOnes) {
  const std::string prefix = std::string(GetParam().name) + " ";
  std::vector<std::string> expected;
  for (const std::string& line : committed()) {
    if (line.starts_with(prefix)) {
      expected.push_back(line);
    }
  }
  EXPECT_EQ(run(GetParam()), expected);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, FrozenTest, testing::ValuesIn(kFrozen),
                         [](const auto& tested) { return std::string(tested.param.name); });

int write(const char* path) {
  std::ofstream file(path);
  for (const Frozen& frozen : kFrozen) {
    for (const std::string& line : run(frozen)) {
      file << line << '\n';
    }
  }
  file.flush();
  std::cout << (file ? "written: " : "cannot write ") << path << '\n';
  return file ? 0 : 1;
}

}  // namespace
}  // namespace sirtaki::scenarios

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) {
    return sirtaki::scenarios::write(argv[2]);
  }
  return RUN_ALL_TESTS();
}
