#include "runtime/net/shared_operation.h"

#include <cstring>

namespace sirtaki::net {

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
  SharedMemory::Readers set = 0;
  for (const Rank reader : readers) {
    set |= SharedMemory::reader(reader);
  }
  return shared().reserve(args().tag, bytes, set);
}

void SharedOperation::announce(const std::vector<Rank>& readers, std::uint32_t slot, const Room& room, ConstBytes data,
                               std::uint32_t check) {
  const auto notice = std::make_shared<Notice>();
  notice->page = room ? room->page : 0;
  notice->follows = room ? 0 : 1;
  for (const Rank reader : readers) {
    send(
        reader, slot, notice->bytes(), [notice] {}, check);
    if (!room) {
      send(reader, slot + kFollows, data);
    }
  }
}

void SharedOperation::publish(const std::vector<Rank>& readers, std::uint32_t slot, ConstBytes data,
                              std::uint32_t check) {
  const Room room = reserve(readers, data.size());
  if (room && !data.empty()) {
    std::memcpy(room->memory.data(), data.data(), data.size());
  }
  announce(readers, slot, room, data, check);
}

}  // namespace sirtaki::net
