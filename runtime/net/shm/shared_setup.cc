#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/shm/shared_memory.h"

namespace sirtaki::net {
namespace {

// A tag that belongs to no operation: no stream has this number.
constexpr OpTag kTag(~std::uint64_t{0});
constexpr std::uint32_t kOffers = 0;
constexpr std::uint32_t kVerdicts = 1;
constexpr std::size_t kLeastBytes = std::size_t{2} * 1024 * 1024;

// Exchanged between ranks of one build on one machine, so numbers have native byte order.
struct Offer {
  std::uint64_t usable = 0;
  SharedSegment::Name name;
};
struct Verdict {
  std::uint64_t usable = 0;
};

template <class T>
Bytes bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Two rounds in which every rank sends to all others: the location of its memory, and whether it has mapped theirs.
class Setup final : public std::enable_shared_from_this<Setup> {
 public:
  Setup(PointToPoint& link, const SharedMemorySetup& options, MoveFunction<void(Result<SharedMemoryOutcome>)> done)
      : link_(link),
        options_(options),
        done_(std::move(done)),
        segments_(static_cast<std::size_t>(link.size())),
        offers_(segments_.size()),
        verdicts_(segments_.size()) {}

  void run() {
    timer_ = link_.loop().after(options_.timeout, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->link_.cancel(kTag, {Code::kTimeout, "a rank of this host does not answer about shared memory"});
      }
    });
    create();
    exchange(kOffers, offers_, &Setup::on_offers);
  }

 private:
  SharedSegment& own() { return segments_[static_cast<std::size_t>(link_.rank())]; }

  void create() {
    Status status = invalid_argument("fewer than " + std::to_string(kLeastBytes) + " bytes are too few");
    for (std::size_t bytes = options_.bytes; bytes >= kLeastBytes; bytes /= 2) {
      auto made = SharedSegment::create(bytes);
      status = made.status();
      if (made) {
        own() = std::move(*made);
        offers_[static_cast<std::size_t>(link_.rank())] = {1, own().name()};
        return;
      }
    }
    refused_ = status.to_string();
  }

  // Sends the entry of this rank in `table` to all, and receives those of the others.
  template <class T>
  void exchange(std::uint32_t slot, std::vector<T>& table, void (Setup::*then)()) {
    missing_ = 2 * (link_.size() - 1);
    for (Rank peer = 0; peer < link_.size(); ++peer) {
      if (peer == link_.rank()) {
        continue;
      }
      const auto arrived = [self = shared_from_this(), then](const Status& status) {
        self->status_.update(status);
        if (--self->missing_ == 0) {
          self->status_.ok() ? (self.get()->*then)() : self->end();
        }
      };
      const Envelope envelope{peer, kTag, slot, 0, 0};
      link_.recv(envelope, bytes_of(table[static_cast<std::size_t>(peer)]), arrived);
      link_.send(envelope, bytes_of(table[static_cast<std::size_t>(link_.rank())]), arrived);
    }
  }

  void on_offers() {
    for (Rank peer = 0; peer < link_.size() && refused_.empty(); ++peer) {
      const Offer& offer = offers_[static_cast<std::size_t>(peer)];
      if (peer == link_.rank() || offer.usable == 0) {
        continue;
      }
      auto opened = SharedSegment::open(offer.name);
      if (opened) {
        segments_[static_cast<std::size_t>(peer)] = std::move(*opened);
      } else {
        refused_ = "rank " + std::to_string(link_.job_rank(peer)) + ": " + std::string(opened.status().text());
      }
    }
    verdicts_[static_cast<std::size_t>(link_.rank())].usable = refused_.empty() ? 1 : 0;
    exchange(kVerdicts, verdicts_, &Setup::on_verdicts);
  }

  void on_verdicts() {
    own().close_door();
    end();
  }

  void end() {
    link_.loop().cancel(timer_);
    auto done = std::move(done_);
    if (!status_.ok()) {
      done(status_);
      return;
    }
    SharedMemoryOutcome outcome;
    const auto unable =
        std::find_if(verdicts_.begin(), verdicts_.end(), [](const Verdict& verdict) { return verdict.usable == 0; });
    if (unable == verdicts_.end()) {
      std::vector<Rank> job_ranks;
      for (Rank peer = 0; peer < link_.size(); ++peer) {
        job_ranks.push_back(link_.job_rank(peer));
      }
      outcome.memory = std::make_shared<SharedMemory>(link_.rank(), std::move(segments_), std::move(job_ranks));
    } else if (unable - verdicts_.begin() == link_.rank()) {
      outcome.refused = refused_;
    }
    done(std::move(outcome));
  }

  PointToPoint& link_;
  const SharedMemorySetup options_;
  MoveFunction<void(Result<SharedMemoryOutcome>)> done_;
  std::vector<SharedSegment> segments_;
  std::vector<Offer> offers_;
  std::vector<Verdict> verdicts_;
  std::string refused_;  // the reason why this rank cannot
  TimerId timer_;
  int missing_ = 0;
  Status status_;
};

}  // namespace

void connect_shared_memory(PointToPoint& link, const SharedMemorySetup& setup,
                           MoveFunction<void(Result<SharedMemoryOutcome>)> done) {
  SRT_IN_LOOP(link.loop());
  SRT_CHECK(link.size() > 1 && link.size() <= SharedMemory::kMaxRanks);
  std::make_shared<Setup>(link, setup, std::move(done))->run();
}

}  // namespace sirtaki::net
