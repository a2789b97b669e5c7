#include "tests/world/recorder.h"

#include <array>
#include <utility>

#include "runtime/base/digest.h"

namespace sirtaki::world {
namespace {

class RecordedLink final : public net::PointToPoint {
 public:
  RecordedLink(net::PointToPoint& link, Recorder& recorder) : link_(link), recorder_(recorder) {}

  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Loop& loop() override { return link_.loop(); }
  void send(const net::Envelope& envelope, ConstBytes data, Done done) override {
    const std::array<std::uint64_t, 4> header = {static_cast<std::uint64_t>(envelope.peer), envelope.slot,
                                                 envelope.check, static_cast<std::uint32_t>(envelope.priority)};
    recorder_.add(Recorder::Kind::kData, rank(), envelope.tag.value, std::as_bytes(std::span(header)));
    recorder_.add(Recorder::Kind::kData, rank(), envelope.tag.value, data);
    link_.send(envelope, data, std::move(done));
  }
  void recv(const net::Envelope& envelope, Bytes out, Done done) override {
    link_.recv(envelope, out, std::move(done));
  }
  Rank job_rank(Rank peer) const override { return link_.job_rank(peer); }
  bool one_host() const override { return link_.one_host(); }
  Duration round_trip() const override { return link_.round_trip(); }
  void cancel(net::TagGroup tags, Status cause) override { link_.cancel(tags, std::move(cause)); }
  void forget(const net::TagGroup& tags) override { link_.forget(tags); }
  void fail(Status cause) override { link_.fail(std::move(cause)); }

 private:
  net::PointToPoint& link_;
  Recorder& recorder_;
};

}  // namespace

void Recorder::add(Kind kind, Rank rank, std::uint64_t key, ConstBytes bytes) {
  const std::array<std::uint64_t, 4> header = {static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(rank), key,
                                               bytes.size()};
  digest_ = digest_of(bytes, digest_of(std::as_bytes(std::span(header)), digest_));
  ++entries_;
}

std::unique_ptr<net::PointToPoint> Recorder::over(net::PointToPoint& link) {
  return std::make_unique<RecordedLink>(link, *this);
}

}  // namespace sirtaki::world
