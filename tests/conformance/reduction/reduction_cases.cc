#include "tests/conformance/reduction/reduction_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "runtime/base/config/compression_methods.h"
#include "runtime/engine/reduction/by_host.h"
#include "tests/world/seeds.h"

namespace sirtaki::engine::testing {
namespace {

constexpr ReductionKind kReductions[] = {
#define SRT_REDUCTION(name, Id, number, most_ranks) ReductionKind::k##Id,
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION
};

void add(Floats& to, const Floats& more) {
  std::transform(to.begin(), to.end(), more.begin(), to.begin(), std::plus<>());
}

// Sums in rank order.
Gradients sums_of_hosts(const net::Hosts& hosts, const Gradients& gradients) {
  Gradients sums;
  for (const std::vector<Rank>& ranks : hosts.ranks()) {
    Tensors& sum = sums.emplace_back(gradients[static_cast<std::size_t>(ranks.front())]);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      for (std::size_t t = 0; t < sum.size(); ++t) {
        add(sum[t], gradients[static_cast<std::size_t>(ranks[r])][t]);
      }
    }
  }
  return sums;
}

Floats residual_sum(const Group& group, const std::vector<Rank>& ranks, std::size_t tensor) {
  Floats residual = group.residual(ranks.front(), tensor);
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    add(residual, group.residual(ranks[r], tensor));
  }
  return residual;
}

// Values are about 0.01 and may have been rounded in another order.
bool nearly(const Floats& a, const Floats& b) {
  return std::ranges::equal(a, b, [](float one, float other) { return std::abs(one - other) <= 1e-6F; });
}

void expect_sums_by_host(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op) {
  Group group(scheme, kCaseSizes, world);
  Reference reference(scheme, kCaseSizes);
  const Layout layout = make_layout(scheme, kCaseSizes, cut);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    Gradients gradients = random_gradients(scheme.ranks, step);
    const Tensors expected = reference.run(gradients, op);
    expect_ok(group.run(layout, gradients, {.op = op}));
    for (Rank rank = 0; rank < scheme.ranks; ++rank) {
      for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
        SCOPED_TRACE("seed " + std::to_string(step) + ", rank " + std::to_string(rank) + ", tensor " +
                     std::to_string(t));
        ASSERT_TRUE(same_bits(gradients[static_cast<std::size_t>(rank)][t], gradients.front()[t]));
        ASSERT_TRUE(nearly(gradients.front()[t], expected[t]));
        ASSERT_TRUE(nearly(group.residual(rank, t), reference.residual(rank, t)));
      }
    }
  }
}

void expect_sums_first(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op) {
  const net::Hosts hosts = net::testing::placement(world, scheme.ranks);
  Group group(scheme, kCaseSizes, world);
  Scheme between = scheme;
  between.ranks = hosts.count();
  between.job_ranks = scheme.ranks;
  Reference reference(between, kCaseSizes);
  const Layout layout = make_layout(scheme, kCaseSizes, cut);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    Gradients gradients = random_gradients(scheme.ranks, step);
    Tensors expected = reference.run(sums_of_hosts(hosts, gradients), ReduceOp::kSum);
    expect_ok(group.run(layout, gradients, {.op = op}));
    for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
      SCOPED_TRACE("seed " + std::to_string(step) + ", tensor " + std::to_string(t));
      if (op == ReduceOp::kAverage) {
        for (float& value : expected[t]) {
          value /= static_cast<float>(scheme.ranks);
        }
      }
      for (const Tensors& results : gradients) {
        ASSERT_TRUE(same_bits(results[t], expected[t]));
      }
      for (int host = 0; host < hosts.count(); ++host) {
        // One rank of a host holds the residual of a stripe; the others add zeros, which may have another sign.
        ASSERT_EQ(residual_sum(group, hosts.ranks()[static_cast<std::size_t>(host)], t), reference.residual(host, t))
            << host;
      }
    }
  }
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const compression::PayloadCodec* codec : compression::payload_codecs()) {
    for (const ReductionKind reduction : kReductions) {
      for (int ranks = 1; ranks <= 4 && codec->supports(reduction); ++ranks) {
        for (const bool feedback : {true, false}) {
          // A sanitizer sees each codec and wire with and without a residual, by turns over the numbers of ranks.
          if (!world::kSanitized || feedback == (ranks % 2 == 0)) {
            all.push_back({{codec, reduction, example_params(*codec, feedback), ranks}, feedback});
          }
        }
      }
    }
  }
  return all;
}

std::vector<Case> host_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& one) { return one.scheme.ranks < 3; });
  return cases;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Scheme& scheme = info.param.scheme;
  return std::string(scheme.codec->name()) + "_" + std::string(reduction_name(scheme.reduction)) + "_" +
         std::to_string(scheme.ranks) + (info.param.feedback ? "_feedback" : "_without");
}

Gradients random_gradients(int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Gradients gradients(static_cast<std::size_t>(ranks));
  for (Tensors& tensors : gradients) {
    for (const std::size_t numel : kCaseSizes) {
      Floats& values = tensors.emplace_back(numel);
      for (float& value : values) {
        value = normal(random) * 0.01F;
      }
    }
  }
  return gradients;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_ok(const std::vector<Status>& outcome) {
  for (const Status& status : outcome) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

void expect_reference(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op) {
  Group group(scheme, kCaseSizes, world);
  Reference reference(scheme, kCaseSizes);
  const Layout layout = make_layout(scheme, kCaseSizes, cut);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    Gradients gradients = random_gradients(scheme.ranks, step);
    const Tensors expected = reference.run(gradients, op);
    expect_ok(group.run(layout, gradients, {.op = op}));
    for (Rank rank = 0; rank < scheme.ranks; ++rank) {
      for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
        SCOPED_TRACE("seed " + std::to_string(step) + ", rank " + std::to_string(rank) + ", tensor " +
                     std::to_string(t));
        ASSERT_TRUE(same_bits(gradients[static_cast<std::size_t>(rank)][t], expected[t]));
        ASSERT_TRUE(same_bits(group.residual(rank, t), reference.residual(rank, t)));
      }
    }
  }
}

void expect_reference_of_hosts(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op) {
  ASSERT_TRUE(net::testing::placement(world, scheme.ranks).several_with_several());
  if (ByHost::supports(scheme.reduction)) {
    expect_sums_first(scheme, world, cut, op);
  } else {
    expect_sums_by_host(scheme, world, cut, op);
  }
}

void expect_nothing_lost(const Scheme& scheme, const std::string& world) {
  Group group(scheme, kCaseSizes, world);
  const Layout layout = make_layout(scheme, kCaseSizes, Cut::kCut);
  Tensors balance;  // inputs minus results
  for (const std::size_t numel : kCaseSizes) {
    balance.emplace_back(numel);
  }
  std::mt19937_64 random(5);
  for (int step = 0; step < 4; ++step) {
    Gradients gradients = random_gradients(scheme.ranks, 1);
    for (Tensors& tensors : gradients) {
      for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
        for (std::size_t i = 0; i < kCaseSizes[t]; ++i) {
          tensors[t][i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
          balance[t][i] += tensors[t][i];
        }
      }
    }
    expect_ok(group.run(layout, gradients));
    for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
      for (const Tensors& results : gradients) {
        ASSERT_TRUE(same_bits(results[t], gradients.front()[t])) << "tensor " << t;
      }
      for (std::size_t i = 0; i < kCaseSizes[t]; ++i) {
        balance[t][i] -= gradients.front()[t][i];
      }
    }
  }
  for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
    Floats residual(kCaseSizes[t]);
    for (Rank rank = 0; rank < scheme.ranks; ++rank) {
      const Floats part = group.residual(rank, t);
      std::transform(residual.begin(), residual.end(), part.begin(), residual.begin(), std::plus<>());
    }
    ASSERT_EQ(residual, balance[t]) << "tensor " << t;
  }
}

}  // namespace sirtaki::engine::testing
