#include "runtime/net/device/launch_line.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace sirtaki::net {
namespace {

constexpr std::uint32_t kToFirst = 0;
constexpr std::uint32_t kFromFirst = 1;

Envelope envelope_to(Rank peer, OpTag tag, std::uint32_t slot) {
  return {peer, tag, slot, kLaunchWordsCheck, std::numeric_limits<std::int32_t>::min()};
}

}  // namespace

LaunchLine::LaunchLine(PointToPoint& link, OpTag tag, Events events)
    : link_(link), tag_(tag), events_(std::move(events)) {
  if (link_.rank() != 0) {
    listen(0);
    return;
  }
  for (Rank peer = 1; peer < link_.size(); ++peer) {
    listen(peer);
  }
}

LaunchLine::~LaunchLine() {
  self_.reset();
  link_.cancel(tag_, {Code::kShutdown, "the collectives of the device are closed"});
}

void LaunchLine::listen(Rank peer) {
  const auto message = std::make_shared<std::vector<std::byte>>(kLaunchWordsBytes);
  link_.recv(envelope_to(peer, tag_, link_.rank() == 0 ? kToFirst : kFromFirst), *message,
             [weak = std::weak_ptr(self_), peer, message](const Status& status) {
               const auto self = weak.lock();
               if (!self) {
                 return;
               }
               if (!status.ok()) {
                 (*self)->on_error(peer, status);
                 return;
               }
               (*self)->on_message(peer, *message);
               (*self)->listen(peer);
             });
}

void LaunchLine::on_message(Rank peer, ConstBytes message) {
  const auto words = decode_launch_words(message);
  const Status status = words ? events_.received(peer, *words) : words.status();
  if (!status.ok()) {
    events_.corrupt(protocol_error(peer, status));
  }
}

// A lost peer ends the job in order; a malformed message does not.
void LaunchLine::on_error(Rank peer, const Status& status) {
  if (status.code() == Code::kMismatch) {
    events_.corrupt(protocol_error(peer, status));
  } else {
    events_.lost(peer, status);
  }
}

Status LaunchLine::protocol_error(Rank peer, const Status& why) const {
  const Rank rank = link_.job_rank(peer);
  return {Code::kCorrupt,
          "rank " + std::to_string(rank) + " and rank " + std::to_string(link_.job_rank(link_.rank())) +
              " cannot agree on the order of launches: " + std::string(why.text()) +
              ". Likely cause: the memory or the network of one of them damages data, or their builds differ",
          {rank, ""}};
}

int LaunchLine::send(Rank peer, std::span<const LaunchWord> words, const std::function<void()>& over) {
  int messages = 0;
  while (!words.empty()) {
    const std::span<const LaunchWord> next = words.first(std::min(words.size(), kMostLaunchWords));
    words = words.subspan(next.size());
    const auto kept = std::make_shared<std::vector<std::byte>>(encode_launch_words(next));
    ++messages;
    link_.send(envelope_to(peer, tag_, peer == 0 ? kToFirst : kFromFirst), *kept,
               [weak = std::weak_ptr(self_), peer, kept, over](const Status& status) {
                 const auto self = weak.lock();
                 if (!self) {
                   return;
                 }
                 // A loss is reported by the receive, behind all words that have arrived before it.
                 if (status.code() == Code::kMismatch) {
                   (*self)->on_error(peer, status);
                 }
                 if (over) {
                   over();
                 }
               });
  }
  return messages;
}

}  // namespace sirtaki::net
