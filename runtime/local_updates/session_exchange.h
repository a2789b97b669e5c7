// SessionExchange: LocalExchange over a Session: operations by name for reports, a stream for the sums of each
// fragment.
//
// The sum of a fragment is a step of its stream, so partitions, priorities, codecs, aborts and liveness are those of
// streams. A fragment has a stream for each encoding. Reports for which steps wait are allreduces among few ranks: they
// add up arrays of bytes, in which each has filled only its own part. That takes one exchange between ranks; an
// allgather takes two, since it does not know the sizes. The owner of the LocalUpdater owns the exchange, and the
// session outlives it. Used on the thread of the training. The destructor waits for exchanges in flight: if other ranks
// may never arrive, close the session first.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/session/session.h"
#include "runtime/local_updates/exchange.h"
#include "runtime/local_updates/model.h"
#include "runtime/local_updates/options.h"

namespace sirtaki::local_updates {

class SessionExchange final : public LocalExchange {
 public:
  // Opens the streams. Collective: all ranks call it alike. `session` and the memory of the model outlive the exchange.
  static Result<std::unique_ptr<SessionExchange>> open(engine::Session& session, const LocalModel& model,
                                                       const LocalOptions& options);
  ~SessionExchange() override;

  // Ranks of a process set are counted from 0, in its order.
  Rank rank() const override;
  int size() const override;
  TimePoint now() const override;
  bool one_host() const override;
  Duration latency() const override;
  Status post(Channel channel, ConstBytes mine) override;
  std::optional<Result<Reports>> received(Channel channel, Duration timeout) override;
  Status send(int fragment, std::span<float> data, std::int64_t encoding) override;
  std::optional<Status> sum(int fragment, Duration timeout) override;
  void abandon(int fragment) override;
  Duration transfer_time(int fragment) const override;
  Status take_residual(int fragment, std::span<float> out) override;
  void mark(const std::string& name, TimePoint begin, TimePoint end) override;
  Status broadcast(Rank root, Bytes data, Duration timeout) override;

 private:
  struct Posted {
    RequestId request;
    bool summed = false;   // an allreduce carries it, not an allgather
    std::size_t each = 0;  // bytes of a part
    // The report of this rank; in an allreduce, the parts of all ranks in their order.
    std::shared_ptr<std::vector<std::byte>> bytes;
  };
  struct Fragment {
    std::vector<StreamId> streams;      // indexed by encoding
    std::vector<int> tensors;           // indices in the stream: 0, 1, ...
    std::vector<std::int64_t> offsets;  // with the end as last entry
    std::int64_t encoding = 0;          // that of the last send
    bool has_residual = false;          // its codec has a compression error
  };

  SessionExchange(engine::Session& session, const LocalOptions& options);
  Status open_fragment(const LocalModel& model, const FragmentLayout& layout, const LocalOptions& options);
  StreamId stream_of(const Fragment& fragment) const {
    return fragment.streams[static_cast<std::size_t>(fragment.encoding)];
  }
  Fragment& of(int fragment) { return fragments_[static_cast<std::size_t>(fragment)]; }

  engine::Session& session_;
  const std::string name_;
  const std::vector<Rank> ranks_;  // empty: all
  std::vector<Fragment> fragments_;
  std::map<Channel, Posted> posted_;
};

}  // namespace sirtaki::local_updates
