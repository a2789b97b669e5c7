#include "runtime/net/gloo/gloo_backend.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/gloo/gloo_bridge.h"
#include "runtime/net/gloo/gloo_calls.h"
#include "runtime/net/gloo/lanes.h"

namespace sirtaki::net {
namespace {

// Ranks may start operations in any order, so each operation needs a lane; the limit is far above what credit admits.
constexpr std::size_t kMaxLanes = 1024;

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(PointToPoint& link, const DirectOptions& options)
      : link_(link), direct_(link, options), lanes_("srt-gloo", kMaxLanes) {}
  ~GlooCollectives() override;

  Caps caps() const override {
    Caps caps;
    caps.rank_order_sums = false;
    return caps;
  }
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Duration round_trip() const override { return link_.round_trip(); }
  void start(CollectiveArgs args, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

 private:
  struct Running {
    std::shared_ptr<GlooBridge> bridge;
    Done done;
  };
  bool goes_direct(const CollectiveArgs& args) const;
  void finish(OpTag tag, Status status);

  PointToPoint& link_;
  DirectCollectives direct_;
  Status aborted_;
  std::unordered_map<OpTag, Running> running_;
  std::shared_ptr<GlooCollectives*> self_ = std::make_shared<GlooCollectives*>(this);
  Lanes lanes_;  // last, so that threads are joined before other members are destroyed
};

GlooCollectives::~GlooCollectives() {
  self_.reset();
  const Status gone(Code::kShutdown, "the collectives were closed");
  for (auto& [tag, running] : running_) {
    link_.cancel(tag, gone);
    running.bridge->detach(gone);
  }
}

// Depends only on arguments that are equal on all ranks.
bool GlooCollectives::goes_direct(const CollectiveArgs& args) const {
  const bool moves_nothing = args.kind != OpKind::kAlltoall && args.kind != OpKind::kBarrier && args.out.empty();
  return size() == 1 || args.kind == OpKind::kReduceScatter || moves_nothing;
}

void GlooCollectives::start(CollectiveArgs args, Done done) {
  SRT_IN_LOOP(link_.loop());
  const OpTag tag = args.tag;
  Status refused = aborted_;
  refused.update(check_args(args, rank(), size()));
  if (refused.ok() && running_.contains(tag)) {
    refused = invalid_argument("tag " + std::to_string(tag.value) + " is already in flight");
  }
  if (refused.ok() && goes_direct(args)) {
    direct_.start(std::move(args), std::move(done));
    return;
  }
  const auto reply = [this](Done to, Status status) {
    link_.loop().post([to = std::move(to), status = std::move(status)]() mutable { to(status); });
  };
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  const Envelope envelope{-1, tag, 0, signature_of(args, DirectOptions()), args.priority};
  auto bridge = std::make_shared<GlooBridge>(link_, envelope);
  Task job = [args = std::move(args), own_rank = rank(), ranks = size(), bridge, &loop = link_.loop(),
              weak = std::weak_ptr(self_)] {
    Status status = call_gloo(args, own_rank, ranks, bridge);
    loop.post([weak, tag = args.tag, status = std::move(status)]() mutable {
      if (const auto self = weak.lock()) {
        (*self)->finish(tag, std::move(status));
      }
    });
  };
  running_.emplace(tag, Running{bridge, std::move(done)});
  if (Status status = lanes_.run(std::move(job)); !status.ok()) {
    auto node = running_.extract(tag);
    reply(std::move(node.mapped().done), std::move(status));
  }
}

void GlooCollectives::finish(OpTag tag, Status status) {
  auto node = running_.extract(tag);
  node.mapped().done(std::move(status));
}

// Gloo sends along rings and trees, so success on this rank says little about the others. Tombstones are kept.
void GlooCollectives::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(link_.loop());
  for (auto& [tag, running] : running_) {
    if (tags.contains(tag)) {
      running.bridge->fail(cause);
    }
  }
  direct_.cancel(tags, std::move(cause));
}

void GlooCollectives::abort(Status cause) {
  SRT_IN_LOOP(link_.loop());
  aborted_.update(cause);
  for (auto& [tag, running] : running_) {
    running.bridge->fail(aborted_);
    link_.cancel(tag, aborted_);
  }
  direct_.abort(std::move(cause));
}

}  // namespace

std::unique_ptr<Collectives> make_gloo(PointToPoint& link, const DirectOptions& direct) {
  return std::make_unique<GlooCollectives>(link, direct);
}

}  // namespace sirtaki::net
