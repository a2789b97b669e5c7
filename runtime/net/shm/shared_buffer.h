// SharedBuffer: memory of this rank that other ranks of its host read in place.
//
// Owned by: the caller of Collectives::allocate_shared(). Thread: the loop. Not for: readers, which use SharedMemory.
#pragma once

#include <memory>

#include "runtime/base/types.h"

namespace sirtaki::net {

// Memory whose allreduce needs no copy to hand it out. It is given back when `keeps` goes, and reused once the last
// reader has released it.
struct SharedBuffer {
  std::shared_ptr<void> keeps;
  Bytes memory;
};

}  // namespace sirtaki::net
