// SessionExchange: local updates over a Session: operations by name for reports, a stream a fragment for sums.
//
// A fragment's sum is a step of its stream, which brings partitions, priorities, codecs, aborts and liveness. Fragments
// that may travel compressed have a second stream, so that a drain can send them as they are.
// Owned by whoever has the LocalUpdater; outlived by the session. The training's thread. Destroyed while something is
// in flight it waits for it: where other ranks may not come any more, close the session first.
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
  // Opens the streams, on all ranks alike. `session` and the model's memory outlive the exchange.
  static Result<std::unique_ptr<SessionExchange>> open(engine::Session& session, const LocalModel& model,
                                                       const LocalOptions& options);
  ~SessionExchange() override;

  Rank rank() const override { return session_.rank(); }
  int size() const override { return session_.membership().size(); }
  TimePoint now() const override;
  Status post(Channel channel, ConstBytes mine) override;
  std::optional<Result<Reports>> received(Channel channel, Duration timeout) override;
  Status send(int fragment, std::span<float> data, bool compressed) override;
  std::optional<Status> sum(int fragment, Duration timeout) override;
  void abandon(int fragment) override;
  Duration transfer_time(int fragment) const override;
  Status take_residual(int fragment, std::span<float> out) override;
  void mark(const std::string& name, TimePoint begin, TimePoint end) override;
  Status broadcast(Rank root, Bytes data, Duration timeout) override;

 private:
  struct Posted {
    RequestId request;
    std::shared_ptr<std::vector<std::byte>> mine;
  };
  struct Fragment {
    StreamId dense;
    std::optional<StreamId> compressed;
    std::vector<int> tensors;           // 0, 1, ...: those of the stream
    std::vector<std::int64_t> offsets;  // with the end
    bool last_compressed = false;       // the last send
    bool has_residual = false;          // the codec keeps what did not arrive
  };

  SessionExchange(engine::Session& session, std::string name);
  Status open_fragment(const LocalModel& model, const FragmentLayout& layout, const LocalOptions& options);
  StreamId stream_of(const Fragment& fragment) const {
    return fragment.last_compressed ? *fragment.compressed : fragment.dense;
  }
  Fragment& of(int fragment) { return fragments_[static_cast<std::size_t>(fragment)]; }

  engine::Session& session_;
  const std::string name_;
  std::vector<Fragment> fragments_;
  std::map<Channel, Posted> posted_;
};

}  // namespace sirtaki::local_updates
