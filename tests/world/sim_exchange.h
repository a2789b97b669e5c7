// SimExchanges: the exchanges of local updates between simulated ranks, with a virtual clock, delays and faults.
//
// Each rank is a thread that runs a plain function. One thread runs at a time, and the next is the one whose time has
// come, so that a seed can be replayed. Reports and sums arrive after random delays. A sum may end with an error on
// some ranks, or arrive after other ranks have given it up; a rank may die at any of its calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/local_updates/exchange.h"

namespace sirtaki::world {

struct SimExchangeOptions {
  std::uint64_t seed = 1;
  int size = 2;
  Duration longest_delay = std::chrono::milliseconds(50);
  int abort_permille = 0;  // share of sums that fail on some ranks
  int late_permille = 0;   // share of sums that take 20 seconds on some ranks
  Rank dies = -1;
  int dies_at = -1;             // index of the call in which it dies, from 0
  Code loss = Code::kPeerLost;  // error of the others then
};

class SimExchanges {
 public:
  explicit SimExchanges(const SimExchangeOptions& options);

  // Thrown on the thread of the rank that dies.
  struct Died {};

  class RankExchange : public local_updates::LocalExchange {
   public:
    struct Span {
      std::string name;
      TimePoint begin;
      TimePoint end;
    };

    // Advances the clock of the rank by `duration`.
    virtual void compute(Duration duration) = 0;
    // Returns the spans that the rank marked, in that order.
    virtual const std::vector<Span>& spans() const = 0;
    // Returns the encodings of the sums that were begun.
    virtual const std::vector<std::int64_t>& sends() const = 0;
  };

  // Runs the program once on each rank, to the end. Returns a description of the first failure other than a death;
  // empty on success.
  std::string run(const std::function<void(RankExchange&)>& program);
  int calls(Rank rank) const { return calls_[static_cast<std::size_t>(rank)]; }

 private:
  friend class SimRank;
  using Key = std::tuple<int, int, std::uint64_t>;  // kind, fragment, use

  // Inputs of all ranks, and the time at which each rank has the result.
  struct Meeting {
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::uint8_t> there;
    TimePoint last;             // time of the latest contribution
    std::vector<TimePoint> at;  // one entry per rank; set when all contributions are there
    std::vector<std::uint8_t> fails;
  };

  void turn_over();
  void rest(Rank rank, TimePoint until);
  void call(Rank rank);
  Meeting& meet(const Key& key, Rank rank, ConstBytes mine, bool faults);
  bool a_rank_died() const { return died_; }
  Duration delay();
  bool draw(int permille) { return static_cast<int>(random_() % 1000) < permille; }

  const SimExchangeOptions options_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::condition_variable>> turns_;  // one entry per rank
  Rank running_ = -1;
  TimePoint now_;
  std::vector<TimePoint> wakes_;  // one entry per rank; max(): the rank has ended
  std::vector<int> calls_;
  bool died_ = false;
  std::map<Key, Meeting> meetings_;
};

}  // namespace sirtaki::world
