#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compression/low_rank_factors.h"
#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return sum;
}

// Sum of `rank` outer products whose sizes halve.
std::vector<float> matrix(std::int64_t rows, std::int64_t cols, int rank, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  for (int k = 0; k < rank; ++k) {
    std::vector<float> left(static_cast<std::size_t>(rows));
    std::vector<float> right(static_cast<std::size_t>(cols));
    for (std::vector<float>* side : {&left, &right}) {
      for (float& value : *side) {
        value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
      }
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      for (std::size_t j = 0; j < right.size(); ++j) {
        out[i * right.size() + j] += std::ldexp(left[i] * right[j], -k);
      }
    }
  }
  return out;
}

// Ranks that reduce factors in the way of the reduction.
class World {
 public:
  World(std::size_t ranks, const Shape& shape, std::int64_t rank, bool warm) {
    for (std::size_t r = 0; r < ranks; ++r) {
      factors_.emplace_back(shape, rank, warm);
      left.emplace_back(static_cast<std::size_t>(shape.numel));
    }
  }

  // Returns an approximate mean of the ranks' matrices; all ranks get the same bits.
  std::vector<float> step(std::vector<std::vector<float>>& gradients) {
    std::vector<float> p(factors_[0].p_bytes() / 4);
    std::vector<float> q(factors_[0].q_bytes() / 4);
    std::vector<float> mean(q.size());
    std::vector<std::vector<float>> ps(factors_.size(), p);
    for (std::size_t r = 0; r < factors_.size(); ++r) {
      std::vector<float> own(p.size());
      factors_[r].project(arrays(gradients, r), bytes(own));
      for (std::size_t i = 0; i < p.size(); ++i) {
        p[i] += own[i];
      }
    }
    for (std::size_t r = 0; r < factors_.size(); ++r) {
      ps[r] = p;
      factors_[r].back(arrays(gradients, r), bytes(ps[r]), bytes(q));
      for (std::size_t i = 0; i < q.size(); ++i) {
        mean[i] += q[i] / static_cast<float>(factors_.size());
      }
    }
    std::vector<float> first;
    for (std::size_t r = 0; r < factors_.size(); ++r) {
      std::vector<float> out(left[r].size());
      factors_[r].rebuild(arrays(gradients, r), bytes(ps[r]), bytes(mean), bytes(out));
      EXPECT_TRUE(r == 0 || out == first);
      first = out;
    }
    return first;
  }

  std::vector<std::vector<float>> left;

 private:
  kernels::Feedback arrays(std::vector<std::vector<float>>& gradients, std::size_t r) {
    return {.gradient = bytes(gradients[r]), .residual = bytes(left[r]), .left = bytes(left[r])};
  }

  std::vector<LowRankFactors> factors_;
};

TEST(PowerSgd, ReducedFactorsGiveTheMeanAndLeaveTheRest) {
  for (const std::size_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Shape shape{.numel = 40 * 60, .rows = 40};
    World world(ranks, shape, 4, true);
    std::vector<double> balance(2400);  // mean of inputs minus mean of results
    for (std::uint64_t step = 0; step < 10; ++step) {
      std::vector<std::vector<float>> gradients;
      for (std::size_t r = 0; r < ranks; ++r) {
        gradients.push_back(matrix(40, 60, 8, 100 * step + r));
      }
      const std::vector<float> out = world.step(gradients);
      std::vector<double> residual(balance.size());
      for (std::size_t i = 0; i < balance.size(); ++i) {
        for (std::size_t r = 0; r < ranks; ++r) {
          balance[i] += static_cast<double>(gradients[r][i]) / static_cast<double>(ranks);
          residual[i] += static_cast<double>(world.left[r][i]) / static_cast<double>(ranks);
        }
        balance[i] -= static_cast<double>(out[i]);
        ASSERT_NEAR(balance[i], residual[i], 1e-4);
      }
    }
  }
}

// Repeats one matrix without feedback: a warm start finds the largest directions.
TEST(PowerSgd, WarmStartsComeNearerToTheBest) {
  const std::vector<float> a = matrix(30, 50, 10, 5);
  double rest[2];
  for (const int warm : {0, 1}) {
    LowRankFactors factors({.numel = 1500, .rows = 30}, 2, warm != 0);
    std::vector<float> gradient = a;
    std::vector<float> p(factors.p_bytes() / 4);
    std::vector<float> q(factors.q_bytes() / 4);
    std::vector<float> out(gradient.size());
    double sum = 0;
    for (int step = 0; step < 20; ++step) {
      const kernels::Feedback arrays{.gradient = bytes(gradient)};
      factors.project(arrays, bytes(p));
      factors.back(arrays, bytes(p), bytes(q));
      factors.rebuild(arrays, bytes(p), bytes(q), bytes(out));
      std::vector<float> miss = a;
      for (std::size_t i = 0; i < miss.size(); ++i) {
        miss[i] -= out[i];
      }
      sum += step < 10 ? 0 : squares(miss);
    }
    rest[warm] = sum;
  }
  EXPECT_LT(rest[1], 0.99 * rest[0]);
}

// Zeros leave no direction; the next gradient defines one.
TEST(PowerSgd, StartsAnewAfterZeros) {
  const auto coder = find_payload_codec("powersgd")->open(Values{1, 3, 1}, {.numel = 120, .rows = 10});
  std::vector<float> left(120);
  std::vector<float> zeros(120);
  std::vector<float> gradient = matrix(10, 12, 3, 6);
  std::vector<std::byte> payload(coder->payload_bytes(120));
  coder->encode({0, 120}, {.gradient = bytes(zeros), .residual = bytes(left), .left = bytes(left)}, payload);
  EXPECT_EQ(left, zeros);
  coder->encode({0, 120}, {.gradient = bytes(gradient), .residual = bytes(left), .left = bytes(left)}, payload);
  EXPECT_LT(squares(left), 1e-8 * squares(gradient));
}

TEST(PowerSgd, HasFactorsOfTheShorterSideAtMost) {
  const PayloadCodec& codec = *find_payload_codec("powersgd");
  EXPECT_EQ(codec.payload_bytes(Values{1, 4, 1}, {.numel = 6000, .rows = 60}, 6000), (60U + 100U) * 4U * 4U);
  EXPECT_EQ(codec.payload_bytes(Values{1, 4, 1}, {.numel = 200, .rows = 2}, 200), (2U + 100U) * 2U * 4U);
  EXPECT_EQ(codec.check(Values{1, 4, 1}, {.numel = 200, .rows = 3}).code(), Code::kInvalidArgument);
  const auto coder = codec.open(Values{1, 4, 1}, {.numel = 200, .rows = 2});
  ASSERT_NE(coder->factors(), nullptr);
  EXPECT_EQ(coder->factors()->shape().rank, 2);
  EXPECT_EQ(find_payload_codec("int8")->open(Values{1, 64}, {.numel = 200})->factors(), nullptr);
}

}  // namespace
}  // namespace sirtaki::compression
