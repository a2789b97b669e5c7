// DeviceByHost: ByHost (by_host.h) of gradients on GPUs: NCCL sums up on each host, and what leaves a host is encoded.
//
// For: kGather of what DeviceGather takes, where several hosts have several ranks. Four steps. A sum of the gradients
// among the GPUs of each host, over NCCL, in place or, of several slices, where they are packed; every rank encodes its
// shares of that and exchanges payloads with their owners on the other hosts; the payloads of all shares are gathered
// on the host; every rank decodes all of them. So a payload leaves a host once, whatever its ranks, and nothing dense
// but the first sum travels at all. Which stripes are whose share is as there, and so are a rank's residuals: of the
// sums of its own shares. NCCL adds in an order of its own, alike for all ranks of a host.
// Every rank sees all headers before it takes anything: a slice that is not finite, on any rank or in any sum, is not
// anywhere, and moves no residual.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/slices.h"
#include "runtime/net/link/hosts.h"

namespace sirtaki::engine {

class DeviceByHost final : public Reduction {
 public:
  // As DeviceGather's; `deps.net` has these groups, `nccl` (DeviceWork::on_host) as well. All outlive it.
  DeviceByHost(ReductionSpec spec, ReductionDeps deps, StageNote note, const net::HostGroups& groups,
               DeviceTransport& transport, net::DeviceCollectives& nccl, Result<std::vector<std::byte*>> residuals);

  void cancel(const Status& cause) override;

 private:
  // Neighbouring stripes of a share, as a piece.
  struct Run {
    Stripe piece;  // its gradient: where it is summed up
    int share;
    std::size_t place;    // of its payload in a block
    std::byte* residual;  // null: what is not sent is lost
  };
  // What the hosts have of a share: a block each, a header and payloads.
  struct Share {
    std::size_t at = 0;
    std::size_t block_bytes = 0;
    net::Collectives* owners = nullptr;  // null: another rank of the host exchanges it
  };

  void begin() override;
  std::size_t phases() const override { return 3; }
  Status lay_out();
  Status pack();
  void reduce_here();
  Status encode();
  Status encode_runs();
  Status exchange();
  void fill_blocks();
  Status gather();
  Status check();
  Status finish();
  Status decode();
  Status decode(const Run& run);
  void cancel_exchanges(const Status& cause);

  std::size_t hosts() const { return static_cast<std::size_t>(groups_.hosts.count()); }
  std::size_t own_host() const { return static_cast<std::size_t>(groups_.host); }
  Share& share(int number) { return shares_[static_cast<std::size_t>(number)]; }
  std::size_t share_bytes(int number) { return share(number).block_bytes * hosts(); }
  bool own(const Run& run) { return share(run.share).owners != nullptr; }
  // What a host has of a share, in either memory.
  std::size_t block_at(int number, std::size_t host) { return share(number).at + host * share(number).block_bytes; }
  Bytes block(int number, std::size_t host) {
    return host_.bytes().subspan(block_at(number, host), share(number).block_bytes);
  }
  Bytes blocks() { return host_.bytes().subspan(flags_bytes_, blocks_bytes_); }

  const net::HostGroups& groups_;
  DeviceTransport& transport_;
  net::DeviceCollectives& nccl_;
  Slices slices_;
  const Result<std::vector<std::byte*>> residuals_;
  std::vector<Share> shares_;  // by number
  std::vector<Run> runs_;
  std::size_t flags_bytes_ = 0;  // a word for each run
  std::size_t blocks_bytes_ = 0;
  device::PinnedBlock host_;           // flags, then the shares' blocks
  std::shared_ptr<std::byte> device_;  // the same
  std::shared_ptr<std::byte> packed_;  // null: one slice, which stays where it is
  Bytes sums_;                         // all slices, one behind the other
  std::vector<Bytes> sums_of_;         // by slice
};

}  // namespace sirtaki::engine
