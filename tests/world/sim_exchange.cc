#include "tests/world/sim_exchange.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"

namespace sirtaki::world {
namespace {

constexpr int kSum = 100;
constexpr int kBroadcast = 101;
constexpr Duration kPoll = std::chrono::milliseconds(5);
constexpr Duration kVeryLate = std::chrono::seconds(20);

}  // namespace

class SimRank final : public SimExchanges::RankExchange {
 public:
  SimRank(SimExchanges& net, Rank rank) : net_(net), rank_(rank) {}

  Rank rank() const override { return rank_; }
  int size() const override { return net_.options_.size; }
  TimePoint now() const override { return net_.now_; }
  void compute(Duration duration) override { net_.rest(rank_, net_.now_ + duration); }
  const std::vector<Span>& spans() const override { return spans_; }
  const std::vector<std::int64_t>& sends() const override { return sends_; }
  void mark(const std::string& name, TimePoint begin, TimePoint end) override { spans_.push_back({name, begin, end}); }

  Status post(local_updates::Channel channel, ConstBytes mine) override {
    net_.call(rank_);
    const int kind = static_cast<int>(channel.kind);
    asked_[channel] = {kind, channel.fragment, uses_[{kind, channel.fragment}]++};
    net_.meet(asked_[channel], rank_, mine, false);
    return {};
  }

  std::optional<Result<local_updates::Reports>> received(local_updates::Channel channel, Duration timeout) override {
    net_.call(rank_);
    const auto key = asked_.at(channel);
    SimExchanges::Meeting& meeting = net_.meetings_[key];
    if (!wait(meeting, timeout)) {
      return lost(timeout) ? std::optional(Result<local_updates::Reports>(loss())) : std::nullopt;
    }
    asked_.erase(channel);
    return Result<local_updates::Reports>(meeting.parts);
  }

  Status send(int fragment, std::span<float> data, std::int64_t encoding) override {
    net_.call(rank_);
    sends_.push_back(encoding);
    sums_[fragment] = {{kSum, fragment, uses_[{kSum, fragment}]++}, data, net_.now_};
    net_.meet(sums_[fragment].key, rank_, std::as_bytes(data), true);
    // The memory belongs to the exchange now.
    std::ranges::fill(data, -77.0F);
    return {};
  }

  std::optional<Status> sum(int fragment, Duration timeout) override {
    net_.call(rank_);
    Sum& sum = sums_[fragment];
    SimExchanges::Meeting& meeting = net_.meetings_[sum.key];
    const auto me = static_cast<std::size_t>(rank_);
    if (!wait(meeting, timeout)) {
      return lost(timeout) ? std::optional(loss()) : std::nullopt;
    }
    if (meeting.fails[me] != 0) {
      return Status(Code::kAborted, "the sum was given up");
    }
    std::vector<const std::byte*> parts;
    for (const auto& part : meeting.parts) {
      parts.push_back(part.data());
    }
    kernels::reduce(ReduceOp::kSum, DType::kF32, parts, std::as_writable_bytes(sum.data).data(),
                    static_cast<std::int64_t>(sum.data.size()));
    sum.transfer = net_.now_ - sum.begun;
    return Status();
  }

  void abandon(int /*fragment*/) override {}

  Duration transfer_time(int fragment) const override { return sums_.at(fragment).transfer; }
  Status take_residual(int /*fragment*/, std::span<float> out) override {
    std::ranges::fill(out, 0.0F);
    return {};
  }

  Status broadcast(Rank root, Bytes data, Duration timeout) override {
    net_.call(rank_);
    const SimExchanges::Key key{kBroadcast, 0, uses_[{kBroadcast, 0}]++};
    net_.meet(key, rank_, data, false);
    SimExchanges::Meeting& meeting = net_.meetings_[key];
    if (!wait(meeting, timeout)) {
      return lost(timeout) ? loss() : Status(Code::kTimeout, "no other rank arrived");
    }
    std::ranges::copy(meeting.parts[static_cast<std::size_t>(root)], data.data());
    return {};
  }

 private:
  struct Sum {
    SimExchanges::Key key;
    std::span<float> data;
    TimePoint begun;
    Duration transfer = Duration(0);
  };

  Status loss() const { return {net_.options_.loss, "a rank died"}; }
  // Waiting ranks learn of a death after a delay.
  bool lost(Duration timeout) const { return timeout > Duration(0) && net_.a_rank_died(); }

  // Returns whether the rank has the result, or an error, before the timeout.
  bool wait(const SimExchanges::Meeting& meeting, Duration timeout) {
    const TimePoint end = net_.now_ + timeout;
    const auto me = static_cast<std::size_t>(rank_);
    while (true) {
      const bool here = !meeting.at.empty() && meeting.at[me] <= net_.now_;
      if (here) {
        return true;
      }
      if (net_.now_ >= end || lost(timeout)) {
        return false;
      }
      const TimePoint next = meeting.at.empty() ? net_.now_ + kPoll : meeting.at[me];
      net_.rest(rank_, std::min(next, end));
    }
  }

  SimExchanges& net_;
  const Rank rank_;
  std::map<std::pair<int, int>, std::uint64_t> uses_;
  std::map<local_updates::Channel, SimExchanges::Key> asked_;
  std::map<int, Sum> sums_;
  std::vector<Span> spans_;
  std::vector<std::int64_t> sends_;
};

SimExchanges::SimExchanges(const SimExchangeOptions& options)
    : options_(options),
      random_(options.seed),
      now_(std::chrono::hours(1)),
      wakes_(static_cast<std::size_t>(options.size), now_),
      calls_(wakes_.size()) {
  for (Rank rank = 0; rank < options.size; ++rank) {
    turns_.push_back(std::make_unique<std::condition_variable>());
  }
}

Duration SimExchanges::delay() {
  return Duration(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(options_.longest_delay.count())));
}

SimExchanges::Meeting& SimExchanges::meet(const Key& key, Rank rank, ConstBytes mine, bool faults) {
  Meeting& meeting = meetings_[key];
  const auto count = static_cast<std::size_t>(options_.size);
  if (meeting.parts.empty()) {
    meeting.parts.resize(count);
    meeting.there.resize(count);
    meeting.fails.resize(count);
  }
  const auto me = static_cast<std::size_t>(rank);
  meeting.parts[me].assign(mine.begin(), mine.end());
  meeting.there[me] = 1;
  if (std::ranges::count(meeting.there, std::uint8_t{0}) > 0) {
    return meeting;
  }
  const bool aborts = faults && draw(options_.abort_permille);
  const bool late = faults && draw(options_.late_permille);
  for (std::size_t r = 0; r < count; ++r) {
    meeting.at.push_back(now_ + delay() + (late && random_() % 2 == 0 ? kVeryLate : Duration(0)));
    if (aborts && random_() % 2 == 0) {
      meeting.fails[r] = 1;
    }
  }
  return meeting;
}

void SimExchanges::call(Rank rank) {
  int& calls = calls_[static_cast<std::size_t>(rank)];
  if (rank == options_.dies && calls == options_.dies_at) {
    died_ = true;
    throw Died();
  }
  ++calls;
}

// Resumes the rank that is due first; of several, the lowest.
void SimExchanges::turn_over() {
  const auto next = std::ranges::min_element(wakes_);
  if (*next == TimePoint::max()) {
    running_ = -1;
  } else {
    now_ = std::max(now_, *next);
    running_ = static_cast<Rank>(next - wakes_.begin());
    turns_[static_cast<std::size_t>(running_)]->notify_one();
  }
}

void SimExchanges::rest(Rank rank, TimePoint until) {
  std::unique_lock lock(mutex_);
  wakes_[static_cast<std::size_t>(rank)] = until;
  turn_over();
  turns_[static_cast<std::size_t>(rank)]->wait(lock, [this, rank] { return running_ == rank; });
}

std::string SimExchanges::run(const std::function<void(RankExchange&)>& program) {
  std::string outcome;
  {
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < options_.size; ++rank) {
      threads.emplace_back([this, rank, &program, &outcome] {
        {
          std::unique_lock lock(mutex_);
          turns_[static_cast<std::size_t>(rank)]->wait(lock, [this, rank] { return running_ == rank; });
        }
        std::string text;
        try {
          SimRank exchange(*this, rank);
          program(exchange);
        } catch (const Died&) {
          text.clear();
        } catch (const std::exception& error) {
          text =
              "seed " + std::to_string(options_.seed) + ", rank " + std::to_string(rank) + ": " + error.what() + "\n";
        }
        const std::lock_guard lock(mutex_);
        outcome += text;
        wakes_[static_cast<std::size_t>(rank)] = TimePoint::max();
        turn_over();
      });
    }
    const std::lock_guard lock(mutex_);
    turn_over();
  }
  return outcome;
}

}  // namespace sirtaki::world
