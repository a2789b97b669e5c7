// The round trip of a TCP connection, as the kernel has measured it. Plain function, any thread.
#pragma once

#include "runtime/base/types.h"

namespace sirtaki::net {

// The shortest one seen on `socket`; zero where the kernel does not tell.
Duration shortest_round_trip(int socket);

}  // namespace sirtaki::net
