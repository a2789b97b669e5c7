// Measure: one rank of the measurement of links, which `sirtakirun --check` starts on each host.
//
// The ranks form a job of their own and send payloads by broadcasts of the runtime, so the measurement uses the same
// transport as a training. Pairs of hosts take turns.
#pragma once

#include <string>
#include <vector>

namespace sirtaki::launcher {

// Measures with the other ranks, of which hosts[rank] is the host; rank 0 prints the table and the advice. Returns the
// exit code. Call it once in a process that has the environment of a rank.
int measure_links(const std::vector<std::string>& hosts);

}  // namespace sirtaki::launcher
