// What goes wrong with a compressed partition: nothing of it is applied, and the next one works.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/recipe_support.h"

namespace sirtaki::engine::testing {
namespace {

const std::vector<std::size_t> kSizes = {5000, 3000};

Scheme int8_scheme(Recipe recipe, int ranks) {
  const compression::PayloadCodec& codec = *compression::find_payload_codec("int8");
  return {&codec, recipe, example_params(codec, true), ranks};
}

Gradients ramps(int ranks) {
  Gradients gradients(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (const std::size_t numel : kSizes) {
      Floats& values = gradients[r].emplace_back(numel);
      for (std::size_t i = 0; i < numel; ++i) {
        values[i] = static_cast<float>(i % 1000) + 0.3F * static_cast<float>(r + 1);
      }
    }
  }
  return gradients;
}

// Writes over a byte of what a collective has received before the recipe sees it.
class Damaging final : public net::Collectives {
 public:
  struct Damage {
    OpKind kind;
    Rank sender;
    std::size_t at;  // in the sender's block
    std::byte value;
  };
  Damaging(net::Collectives& inner, const std::shared_ptr<std::vector<Damage>>& damage)
      : inner_(inner), damage_(damage) {}

  net::Caps caps() const override { return inner_.caps(); }
  Rank rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void cancel(net::TagGroup tags, Status cause) override { inner_.cancel(tags, std::move(cause)); }
  void abort(Status cause) override { inner_.abort(std::move(cause)); }
  void start(net::CollectiveArgs args, Done done) override {
    const Bytes out = args.out;
    const OpKind kind = args.kind;
    std::vector<std::int64_t> counts = args.recv_counts;
    inner_.start(std::move(args),
                 [this, out, kind, counts = std::move(counts), done = std::move(done)](const Status& status) mutable {
                   for (const Damage& damage : *damage_) {
                     if (damage.kind == kind) {
                       std::size_t at = damage.at;
                       for (Rank r = 0; r < damage.sender; ++r) {
                         at += static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]);
                       }
                       out[at] = damage.value;
                     }
                   }
                   done(status);
                 });
  }

 private:
  net::Collectives& inner_;
  const std::shared_ptr<std::vector<Damage>> damage_;
};

class RecipeFaults : public ::testing::TestWithParam<Recipe> {
 protected:
  RecipeFaults() : group_(int8_scheme(GetParam(), 3), kSizes, "local") {
    group_.wrap([this](Rank rank, net::Collectives& inner) {
      return std::make_unique<Damaging>(inner, rank == 1 ? damage_ : std::make_shared<std::vector<Damaging::Damage>>());
    });
  }

  std::vector<Floats> owed() const {
    std::vector<Floats> all;
    for (Rank rank = 0; rank < 3; ++rank) {
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        all.push_back(group_.owed(rank, t));
      }
    }
    return all;
  }

  std::shared_ptr<std::vector<Damaging::Damage>> damage_ = std::make_shared<std::vector<Damaging::Damage>>();
  Group group_;
};

// One partition of both tensors: two bytes of header, then the exponents of the first tensor's first stripe.
TEST_P(RecipeFaults, CorruptPayloadsNameRankAndTensorAndNothingIsApplied) {
  const Layout layout = make_layout(int8_scheme(GetParam(), 3), kSizes, Cut::kFused);
  ASSERT_EQ(layout.size(), 1U);
  Gradients gradients = ramps(3);
  for (const Status& status : group_.run(layout, gradients)) {
    ASSERT_TRUE(status) << status.to_string();
  }
  const std::vector<Floats> before = owed();
  const bool gather = GetParam() == Recipe::kGather;
  const OpKind first = gather ? OpKind::kAllgather : OpKind::kAlltoall;
  const Damaging::Damage cases[] = {
      {first, 2, 2, std::byte{0x81}},               // an exponent that no sender writes
      {first, 2, 0, std::byte{0x40}},               // a header likewise
      {OpKind::kAllgather, 2, 2, std::byte{0x81}},  // of a sum, in scatter
  };
  for (const Damaging::Damage& damage : cases) {
    *damage_ = {damage};
    gradients = ramps(3);
    const std::vector<Status> outcome = group_.run(layout, gradients);
    EXPECT_EQ(outcome[1].code(), Code::kCorrupt) << outcome[1].to_string();
    EXPECT_EQ(outcome[1].blame().rank, 2);
    EXPECT_EQ(outcome[1].blame().tensor, "tensor0") << outcome[1].to_string();
    const std::vector<Floats> after = owed();
    EXPECT_EQ(after[2], before[2]);
    EXPECT_EQ(after[3], before[3]);
  }
  damage_->clear();
  gradients = ramps(3);
  for (const Status& status : group_.run(layout, gradients)) {
    EXPECT_TRUE(status) << status.to_string();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

TEST_P(RecipeFaults, CancelledPartitionsEndOnceWithTheCauseAndOweWhatTheyDid) {
  const Layout layout = make_layout(int8_scheme(GetParam(), 3), kSizes, Cut::kCut);
  Gradients gradients = ramps(3);
  for (const Status& status : group_.run(layout, gradients)) {
    ASSERT_TRUE(status) << status.to_string();
  }
  const std::vector<Floats> before = owed();
  gradients = ramps(3);
  const Status cause(Code::kAborted, "out of memory");
  const std::vector<Status> outcome = group_.run(layout, gradients, {.then = [cause](Rank rank, Reduction& reduction) {
                                                   if (rank == 1) {
                                                     reduction.cancel(cause);
                                                   }
                                                 }});
  EXPECT_EQ(outcome[1].text(), cause.text());
  const std::vector<Floats> after = owed();
  EXPECT_EQ(after[2], before[2]);
  EXPECT_EQ(after[3], before[3]);
  gradients = ramps(3);
  for (const Status& status : group_.run(layout, gradients)) {
    EXPECT_TRUE(status) << status.to_string();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

INSTANTIATE_TEST_SUITE_P(All, RecipeFaults, ::testing::Values(Recipe::kGather, Recipe::kScatter));

}  // namespace
}  // namespace sirtaki::engine::testing
