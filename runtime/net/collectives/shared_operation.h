// SharedOperation: base class of the algorithms whose data goes through shared memory. Messages over the link carry the
// position of a block; they match, fail and end like those of any Operation.
// Data that finds no room in shared memory follows its message over the link, so no operation waits for memory of
// another one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/net/collectives/operation.h"
#include "runtime/net/collectives/reducer.h"
#include "runtime/net/shm/shared_memory.h"

namespace sirtaki::net {

class SharedOperation : public Operation {
 public:
  using Operation::Operation;
  // Releases the blocks of the operation, which may have failed without notice to the shared memory.
  ~SharedOperation() override;

 protected:
  // Data of a peer, received through shared memory or over the link.
  struct Arrival {
    SharedView view;
    Staging staging;
    ConstBytes data;
  };
  using Room = std::optional<SharedMemory::Room>;
  // The first page of a published SharedBuffer.
  using SharedPage = std::optional<std::uint32_t>;
  // The subject of a message. Its segment number distinguishes it from others with the same subject.
  enum class Kind : std::uint8_t { kData = 0, kResult = 1, kTaken = 2 };
  static constexpr std::uint32_t slot_of(Kind kind, std::size_t index) {
    return 8 * static_cast<std::uint32_t>(index) + 2 * static_cast<std::uint32_t>(kind);
  }

  // Sends `data` to `readers`. It must not change while the operation runs. See Operation::send() for `check`.
  void publish(const std::vector<Rank>& readers, std::uint32_t slot, ConstBytes data, std::uint32_t check = 0);
  // The same in two steps: reserve room to be filled, if there is any, then announce that it holds the data.
  Room reserve(const std::vector<Rank>& readers, std::size_t bytes);
  void announce(const std::vector<Rank>& readers, std::uint32_t slot, const Room& room, ConstBytes data,
                std::uint32_t check = 0);
  // If the whole input of this rank lies in a SharedBuffer, `readers` read it there. Send each of them at least one
  // announce_shared().
  SharedPage publish_shared(const std::vector<Rank>& readers);
  void announce_shared(const std::vector<Rank>& readers, std::uint32_t slot, std::uint32_t page);

  // Calls `then` with the data that `peer` published under `slot`: this part of its whole input.
  template <class Then>
  void fetch(Rank peer, std::uint32_t slot, const Block& part, Then then, std::uint32_t check = 0) {
    auto notice = std::make_shared<Notice>();
    auto receive = [this, peer, slot, part, notice, then = std::move(then)]() mutable {
      if (notice->where != Where::kFollows) {
        open(peer, *notice, part, then);
        return;
      }
      const std::size_t bytes = part.size;
      shared().give_back(peer);
      auto arrival = std::make_shared<Arrival>();
      arrival->staging = staging(bytes);
      const Bytes memory(arrival->staging.data(), bytes);
      arrival->data = memory;
      recv(peer, slot + kFollows, memory, [arrival, then = std::move(then)]() mutable { then(std::move(*arrival)); });
    };
    recv(peer, slot, notice->bytes(), std::move(receive), check);
  }

  std::vector<Rank> others() const;

 private:
  void let_go() override { shared_by_.clear(); }

  static constexpr std::uint32_t kFollows = 1;

  enum class Where : std::uint32_t {
    kBlock = 0,
    kFollows = 1,  // not in shared memory; the next slot carries the data
    kShared = 2,   // at its offset in the SharedBuffer of the peer
  };
  struct Notice {
    std::uint32_t page = 0;
    Where where = Where::kBlock;
    Bytes bytes() { return std::as_writable_bytes(std::span(this, 1)); }
  };

  template <class Then>
  void open(Rank peer, const Notice& notice, const Block& part, Then& then) {
    auto arrival =
        notice.where == Where::kShared ? open_shared(peer, notice.page, part) : open_block(peer, notice.page, part);
    if (!arrival) {
      fail(arrival.status());
      return;
    }
    then(std::move(*arrival));
  }
  Result<Arrival> open_block(Rank peer, std::uint32_t page, const Block& part);
  Result<Arrival> open_shared(Rank peer, std::uint32_t page, const Block& part);
  void tell(const std::vector<Rank>& readers, std::uint32_t slot, const Notice& said, std::uint32_t check);

  std::map<Rank, SharedView> shared_by_;  // open until the operation ends
};

}  // namespace sirtaki::net
