// DeviceGather: the reductions Gather and ByHost for gradients on GPUs: kernels encode and sum, and payloads travel
// through pinned host memory.
//
// Without host groups, every rank encodes each slice as a whole and sends its payload to all ranks. With host groups
// there are three exchanges:
//   1. NCCL sums the gradients among the GPUs of each host, in place, or packed if there are several slices.
//   2. Every rank encodes its shares of the sums, and exchanges payloads with their owners on the other hosts.
//   3. The payloads of all shares are gathered on the host.
// Shares and residuals are those of ByHost (by_host.h). NCCL adds in an order of its own, which is the same for all
// ranks of a host.
//
// Every rank validates all headers and payloads in host memory before it uses any of them. A slice that is not finite
// on some rank or in some sum becomes NaN everywhere, and changes no residual. Results equal those on the CPU, with one
// exception: a value outside the range of the codec (a sum of gradient and residual beyond float32; from 2^29 on,
// values sent as float16) counts as not finite. Payloads are aligned to words on the wire, so either all ranks must
// reduce a tensor on GPUs, or none.
//
// Done runs when the rest of the work has been queued on the copy stream of the transport. Thread: loop.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/slices.h"
#include "runtime/net/link/hosts.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

// Device memory of the tensor of a slice.
struct SliceMemory {
  std::byte* residual;     // that of the elements of the slice; null: errors are dropped
  const std::byte* whole;  // filled by DeviceCoding::begin() in this step; null: there is no begin()
};

// Returns a new coder of the tensor; null if it is not compressed.
std::unique_ptr<compression::Coder> coder_of(const scheduler::PlannedTensor& tensor);

class DeviceGather final : public Reduction {
 public:
  // The slices of `spec` are on the device, and their coders have device kernels. `memory`: that of each slice; an
  // error in its place ends the reduction with it. `nccl` sums on hosts (DeviceWork::on_host); required if `deps.net`
  // has host groups, else it may be null. Both it and `transport` must outlive this.
  DeviceGather(ReductionSpec spec, ReductionDeps deps, StageNote note, DeviceTransport& transport,
               net::DeviceCollectives* nccl, Result<std::vector<SliceMemory>> memory);

  void cancel(const Status& cause) override;

  // Returns the sizes of the blocks of device memory that reduce such a partition, the largest first; rather more than
  // needed if `net` has host groups.
  static std::vector<std::size_t> buffers(const scheduler::Partition& partition,
                                          const std::vector<scheduler::PlannedTensor>& tensors,
                                          const net::Collectives& net);

 private:
  // Neighbouring stripes of a slice that belong to the same share, encoded as one piece.
  struct Run {
    Stripe piece;  // with the place of its sum as gradient
    int share;
    std::size_t place;    // offset of its payload in a block
    std::byte* residual;  // null: errors are dropped
  };
  // The blocks of a share: one for each sender, a header and payloads.
  struct Share {
    std::size_t at = 0;
    std::size_t block_bytes = 0;
    bool own = false;  // false: another rank of the host exchanges it
    std::vector<Rank> senders;
  };

  void begin() override;
  std::size_t phases() const override { return groups_ == nullptr ? 1 : 3; }
  Status pack();
  void make_runs();
  Status lay_out();
  void sum_on_host();
  void encode(Status queued);
  Status encode_runs();
  Status exchange();
  void fill_blocks();
  Status gather();
  Status check();
  Status finish();
  Status decode();
  Status decode(const Run& run);
  void cancel_exchanges(const Status& cause);

  std::size_t senders() const { return static_cast<std::size_t>(groups_ == nullptr ? size() : groups_->hosts.count()); }
  // The place of this rank among the senders of its shares.
  std::size_t self() const { return static_cast<std::size_t>(groups_ == nullptr ? rank() : groups_->host); }
  std::size_t block_at(const Share& share, std::size_t sender) const { return share.at + sender * share.block_bytes; }
  Bytes block(const Share& share, std::size_t sender) {
    return host_.bytes().subspan(block_at(share, sender), share.block_bytes);
  }
  Bytes blocks() { return host_.bytes().subspan(notes_bytes_); }
  compression::DeviceCoding& coding_of(const Run& run) const;
  std::byte* scratch() const { return device_.get() + scratch_at_; }
  Bytes all_sums() const { return {sums_.front().data(), sum_bytes_}; }
  Share& share_of(const Run& run) { return shares_[static_cast<std::size_t>(run.share)]; }

  const net::HostGroups* const groups_;  // null: ranks exchange directly
  DeviceTransport& transport_;
  net::DeviceCollectives* const nccl_;
  Slices slices_;
  const Result<std::vector<SliceMemory>> memory_;
  std::vector<Share> shares_;  // indexed by number
  std::vector<Run> runs_;
  std::size_t notes_bytes_ = 0;  // a note of each run
  std::size_t scratch_at_ = 0;
  device::PinnedBlock host_;           // notes, then the blocks of all shares
  std::shared_ptr<std::byte> device_;  // the same layout, then scratch memory of kernels, which run one after the other
  std::shared_ptr<std::byte> packed_;  // null: sums stay in place of the gradients
  std::vector<Bytes> sums_;            // indexed by slice
  std::size_t sum_bytes_ = 0;
};

}  // namespace sirtaki::engine
