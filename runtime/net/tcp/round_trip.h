// Round trip of a TCP connection, as measured by the kernel. Plain function, any thread.
#pragma once

#include "runtime/base/types.h"

namespace sirtaki::net {

// Returns the shortest round trip seen on `socket`; zero if the kernel does not report one.
Duration shortest_round_trip(int socket);

}  // namespace sirtaki::net
