// Fixture of the conformance tests of collectives: worlds with small limits, random inputs and a reference.
//
// The reference adds as kernels/reduce/ref.cc does, in rank order or host by host. Threads: the test's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/half/half.h"
#include "kernels/reduce/reduce.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/conformance/device_worlds.h"

namespace sirtaki::net::testing {

using Memory = std::vector<std::byte>;

// Small limits, so that a few kilobytes take every path: one exchange, several segments, several fragments.
inline WorldOptions small_limits() {
  WorldOptions options;
  options.direct.exchange_bytes = 256;
  options.direct.segment_bytes = 1024;
  options.direct.window = 2;
  options.direct.broadcast_bytes = 256;
  options.transport.limits.eager_bytes = 512;
  options.transport.limits.window_bytes = 4096;
  options.transport.limits.fragment_bytes = 640;
  return options;
}

// Fills memory with random elements.
class Filler {
 public:
  explicit Filler(std::uint64_t seed) : random_(seed) {}

  // Whole numbers are small, so that sums are exact in every dtype; other numbers reveal the order of additions.
  Memory fill(DType dtype, std::size_t elements, bool whole) {
    Memory memory(elements * dtype_size(dtype));
    for (std::size_t i = 0; i < elements; ++i) {
      store(memory.data() + i * dtype_size(dtype), dtype, whole);
    }
    return memory;
  }

 private:
  template <class T>
  static void put(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof(value));
  }

  double number(bool whole) {
    return whole ? static_cast<double>(static_cast<int>(random_() % 5) - 2)
                 : std::uniform_real_distribution<double>(-100, 100)(random_);
  }

  void store(std::byte* at, DType dtype, bool whole) {
    switch (dtype) {
      case DType::kF16:
        put(at, kernels::f32_to_f16(static_cast<float>(number(whole))));
        break;
      case DType::kBF16:
        put(at, kernels::f32_to_bf16(static_cast<float>(number(whole))));
        break;
      case DType::kF32:
        put(at, static_cast<float>(number(whole)));
        break;
      case DType::kF64:
        put(at, number(whole));
        break;
      case DType::kBool:
        put(at, static_cast<std::uint8_t>(random_() % 2));
        break;
      default:
        for (std::size_t i = 0; i < dtype_size(dtype); ++i) {
          put(at + i, static_cast<std::uint8_t>(random_()));
        }
    }
  }

  std::mt19937_64 random_;
};

// Reduces `sources` in their order; an average divides by `divisor`.
inline Memory reduced(ReduceOp op, DType dtype, const std::vector<const std::byte*>& sources, std::size_t bytes,
                      double divisor) {
  Memory out(bytes);
  const auto n = static_cast<std::int64_t>(bytes / dtype_size(dtype));
  if (op == ReduceOp::kAverage) {
    kernels::ref::average(dtype, sources, out.data(), n, divisor);
  } else {
    kernels::ref::reduce(op, dtype, sources, out.data(), n);
  }
  return out;
}

// Sums of halves leave their host divided by a power of two, the first that is at least the number of its ranks.
inline double divisor_of_a_host(DType dtype, const Hosts& hosts) {
  double divisor = 1.0;
  for (const auto& ranks : hosts.ranks()) {
    while ((dtype == DType::kF16 || dtype == DType::kBF16) && divisor < static_cast<double>(ranks.size())) {
      divisor *= 2.0;
    }
  }
  return divisor;
}

// Sums in rank order; with several `hosts`, on each host first and then in order of hosts.
inline Memory reference(ReduceOp op, DType dtype, const std::vector<Memory>& inputs, const Hosts& hosts = {}) {
  std::vector<const std::byte*> sources;
  for (const Memory& input : inputs) {
    sources.push_back(input.data());
  }
  std::vector<Memory> by_host;
  const double here = hosts.several_with_several() ? divisor_of_a_host(dtype, hosts) : 1.0;
  for (const auto& ranks : hosts.ranks()) {
    std::vector<const std::byte*> local;
    for (const Rank rank : ranks) {
      local.push_back(sources[static_cast<std::size_t>(rank)]);
    }
    by_host.push_back(reduced(op, dtype, local, inputs[0].size(), here));
  }
  if (hosts.several_with_several()) {
    sources.clear();
    for (const Memory& sum : by_host) {
      sources.push_back(sum.data());
    }
  }
  return reduced(op, dtype, sources, inputs[0].size(), static_cast<double>(inputs.size()) / here);
}

// A world named by the first parameter, with as many ranks as the second; arguments and inputs of all ranks.
class CollectivesConformance : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    const std::string& name = std::get<0>(GetParam());
    const bool on_device = std::ranges::count(device_worlds(), name) > 0;
    world_ = on_device ? make_device_world(name, std::get<1>(GetParam()))
                       : make_world(name, std::get<1>(GetParam()), small_limits());
    whole_ = !world_->at(0).caps().rank_order_sums;
  }
  int size() const { return world_->size(); }
  // Returns the hosts that an allreduce sums up one by one.
  Hosts hosts() { return world_->at(0).caps().sums_by_host ? placement(std::get<0>(GetParam()), size()) : Hosts(); }
  OpTag next_tag() { return OpTag(++last_tag_); }

  std::vector<CollectiveArgs> args_for_all(OpKind kind) {
    CollectiveArgs args;
    args.kind = kind;
    args.tag = next_tag();
    return std::vector<CollectiveArgs>(static_cast<std::size_t>(size()), args);
  }
  void run(std::vector<CollectiveArgs> args) {
    const auto results = run_on_all(*world_, std::move(args));
    ASSERT_EQ(results.size(), static_cast<std::size_t>(size())) << "did not end";
    for (const Status& status : results) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  std::vector<Memory> inputs(DType dtype, std::size_t elements) {
    std::vector<Memory> all;
    for (int rank = 0; rank < size(); ++rank) {
      all.push_back(filler_.fill(dtype, elements, whole_));
    }
    return all;
  }
  std::vector<std::int64_t> counts(int salt) const {
    std::vector<std::int64_t> list;
    for (int rank = 0; rank < size(); ++rank) {
      list.push_back((rank + salt) % 3 == 0 ? 0 : 37 * (rank + 1) * (salt + 1));
    }
    return list;
  }

  static bool over_nccl() { return std::get<0>(GetParam()) == "nccl" || std::get<0>(GetParam()) == "ordered"; }
  // Returns whether the backend refuses such a reduction.
  bool refused(DType dtype, ReduceOp op) {
    const bool narrow = dtype == DType::kU16 || dtype == DType::kI16;
    return (dtype == DType::kBool && op == ReduceOp::kAverage) || (narrow && over_nccl());
  }

  std::unique_ptr<World> world_;
  bool whole_ = false;
  Filler filler_{1234};
  std::uint64_t last_tag_ = 0;
};

}  // namespace sirtaki::net::testing
