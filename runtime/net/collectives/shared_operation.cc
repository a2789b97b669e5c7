#include "runtime/net/collectives/shared_operation.h"

#include <cstring>

namespace sirtaki::net {
namespace {

SharedMemory::Readers set_of(const std::vector<Rank>& readers) {
  SharedMemory::Readers set = 0;
  for (const Rank reader : readers) {
    set |= SharedMemory::reader(reader);
  }
  return set;
}

}  // namespace

SharedOperation::~SharedOperation() {
  if (!running()) {
    shared().drop(args().tag);
  }
}

std::vector<Rank> SharedOperation::others() const {
  std::vector<Rank> ranks;
  for (int step = 1; step < size(); ++step) {
    ranks.push_back((rank() + step) % size());
  }
  return ranks;
}

SharedOperation::Room SharedOperation::reserve(const std::vector<Rank>& readers, std::size_t bytes) {
  return shared().reserve(args().tag, bytes, set_of(readers));
}

void SharedOperation::tell(const std::vector<Rank>& readers, std::uint32_t slot, const Notice& said,
                           std::uint32_t check) {
  const auto notice = std::make_shared<Notice>(said);
  for (const Rank reader : readers) {
    send(
        reader, slot, notice->bytes(), [notice] {}, check);
  }
}

void SharedOperation::announce(const std::vector<Rank>& readers, std::uint32_t slot, const Room& room, ConstBytes data,
                               std::uint32_t check) {
  if (room) {
    tell(readers, slot, {room->page, Where::kBlock}, check);
    return;
  }
  tell(readers, slot, {0, Where::kFollows}, check);
  for (const Rank reader : readers) {
    send(reader, slot + kFollows, data);
  }
}

SharedOperation::SharedPage SharedOperation::publish_shared(const std::vector<Rank>& readers) {
  return shared().publish_buffer(args().tag, args().in, set_of(readers));
}

void SharedOperation::announce_shared(const std::vector<Rank>& readers, std::uint32_t slot, std::uint32_t page) {
  tell(readers, slot, {page, Where::kShared}, 0);
}

void SharedOperation::publish(const std::vector<Rank>& readers, std::uint32_t slot, ConstBytes data,
                              std::uint32_t check) {
  const Room room = reserve(readers, data.size());
  if (room && !data.empty()) {
    std::memcpy(room->memory.data(), data.data(), data.size());
  }
  announce(readers, slot, room, data, check);
}

Result<SharedOperation::Arrival> SharedOperation::open_block(Rank peer, std::uint32_t page, const Block& part) {
  Arrival arrival;
  SRT_ASSIGN(arrival.view, shared().view(args().tag, peer, page, part.size));
  arrival.data = arrival.view.data();
  return arrival;
}

Result<SharedOperation::Arrival> SharedOperation::open_shared(Rank peer, std::uint32_t page, const Block& part) {
  auto held = shared_by_.find(peer);
  if (held == shared_by_.end()) {
    SRT_ASSIGN(SharedView view, shared().view(args().tag, peer, page, args().in.size()));
    held = shared_by_.emplace(peer, std::move(view)).first;
  }
  Arrival arrival;
  arrival.data = held->second.data().subspan(part.begin, part.size);
  return arrival;
}

}  // namespace sirtaki::net
