#include "tests/fuzz/fuzz_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>

namespace sirtaki::fuzz {
namespace {

constexpr int kMutations = 20'000;
constexpr int kRandomInputs = 5'000;
constexpr std::uint64_t kSeed = 0x5152'4153'4B54'4952;

// Every input depends on its number alone, so that a failing input can be generated again.
std::mt19937_64 generator(int number) {
  return std::mt19937_64(kSeed + static_cast<std::uint64_t>(number));
}

std::size_t below(std::mt19937_64& random, std::size_t limit) {
  return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit);
}

std::string hex(const Input& input) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : input) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

// Returns one line for each seed: "control_fuzz 3 00ff...".
std::string seed_lines() {
  std::string lines;
  int number = 0;
  for (const Input& seed : seeds()) {
    lines += FUZZ_NAME " " + std::to_string(number++) + " " + hex(seed) + "\n";
  }
  return lines;
}

void run(const Input& input, const std::string& what) {
  // Memory of exactly the input's size: the sanitizer sees the first byte read too far.
  const std::unique_ptr<std::uint8_t[]> copy = std::make_unique<std::uint8_t[]>(input.size());
  std::copy(input.begin(), input.end(), copy.get());
  try {
    LLVMFuzzerTestOneInput(copy.get(), input.size());
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": " << error.what() << "; input " << hex(input);
  }
}

void overwrite(Input& input, std::mt19937_64& random) {
  constexpr std::array<std::uint32_t, 9> kInteresting = {0,          1,          0x7F,       0x80,      0xFF,
                                                         0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00010000};
  const std::uint32_t value = kInteresting[below(random, kInteresting.size())];
  const std::size_t at = below(random, input.size());
  std::memcpy(input.data() + at, &value, std::min(sizeof(value), input.size() - at));
}

void mutate_once(Input& input, const std::vector<Input>& all, std::mt19937_64& random) {
  const std::size_t at = below(random, input.size());
  const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (input.empty() ? 3 : below(random, 7)) {
    case 0:
      input[at] = static_cast<std::uint8_t>(input[at] ^ (1U << below(random, 8)));
      return;
    case 1:
      input[at] = static_cast<std::uint8_t>(random());
      return;
    case 2:
      overwrite(input, random);
      return;
    case 3:
      input.insert(place, static_cast<std::uint8_t>(random()));
      return;
    case 4:
      input.erase(place,
                  place + static_cast<std::ptrdiff_t>(1 + below(random, std::min<std::size_t>(16, input.size() - at))));
      return;
    case 5:
      input.resize(at);
      return;
    default: {
      const Input& other = all[below(random, all.size())];
      const std::size_t from = below(random, other.size());
      input.insert(place, other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
    }
  }
}

TEST(Fuzz, SeedsAndAllTheirBeginnings) {
  for (const Input& seed : seeds()) {
    ASSERT_LE(seed.size(), kMaxInput);
    for (std::size_t size = 0; size <= seed.size(); ++size) {
      run(Input(seed.begin(), seed.begin() + static_cast<std::ptrdiff_t>(size)), "beginning of a seed");
    }
  }
}

TEST(Fuzz, MutatedSeeds) {
  const std::vector<Input> all = seeds();
  ASSERT_FALSE(all.empty());
  for (int number = 0; number < kMutations && !HasFailure(); ++number) {
    std::mt19937_64 random = generator(number);
    Input input = all[below(random, all.size())];
    for (std::size_t times = 1 + below(random, 8); times > 0; --times) {
      mutate_once(input, all, random);
    }
    input.resize(std::min(input.size(), kMaxInput));
    run(input, "mutation " + std::to_string(number));
  }
}

TEST(Fuzz, RandomBytes) {
  for (int number = 0; number < kRandomInputs && !HasFailure(); ++number) {
    std::mt19937_64 random = generator(number);
    Input input(below(random, 256));
    std::generate(input.begin(), input.end(), [&random] { return static_cast<std::uint8_t>(random()); });
    run(input, "random input " + std::to_string(number));
  }
}

#ifdef FUZZ_GOLDENS
// Old and new builds must understand each other, so a format may only change on purpose.
TEST(Fuzz, SeedsAreTheGoldensOfTheWireFormat) {
  std::ifstream file(FUZZ_GOLDENS);
  std::string goldens;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(FUZZ_NAME " ")) {
      goldens += line + "\n";
    }
  }
  EXPECT_EQ(goldens, seed_lines()) << "the wire format has changed; if it was meant to, write what `" FUZZ_NAME
                                      " --seeds` prints into " FUZZ_GOLDENS;
}
#endif

}  // namespace
}  // namespace sirtaki::fuzz

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--seeds") {
    std::cout << sirtaki::fuzz::seed_lines();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
