// The io_context behind an AsioLoop, for .cc files that own sockets. Include it from .cc files of rendezvous and net
// only: it includes Asio.
//
// Owned by: the loop; never run, stop or reset the context. Handlers run on the loop thread; an exception of a handler
// goes to on_bug, like one of a task. Destroy all I/O objects before the AsioLoop.
#pragma once

#include <boost/asio/io_context.hpp>

#include "runtime/rendezvous/link/asio_loop.h"

namespace sirtaki::rendezvous {

boost::asio::io_context& io_context_of(AsioLoop& loop);

}  // namespace sirtaki::rendezvous
