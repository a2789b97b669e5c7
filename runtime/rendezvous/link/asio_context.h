// The io_context behind an AsioLoop, for .cc files that own sockets. Include it from .cc files of rendezvous and net
// only: it brings in Asio.
//
// The context belongs to the loop: never run, stop or reset it. Handlers run on the loop's thread; one that throws ends
// in the loop's on_bug, like a task. I/O objects must be gone before the AsioLoop is destroyed.
#pragma once

#include <boost/asio/io_context.hpp>

#include "runtime/rendezvous/link/asio_loop.h"

namespace sirtaki::rendezvous {

boost::asio::io_context& io_context_of(AsioLoop& loop);

}  // namespace sirtaki::rendezvous
