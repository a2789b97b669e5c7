// LaunchSet: the number of a set of ranks that launch operations together.
//
// Plain value; equal on all ranks of the set.
#pragma once

#include <cstdint>

namespace sirtaki::net {

using LaunchSet = std::uint32_t;

inline constexpr LaunchSet kJobSet = 0;
// All ranks, too, but each operates with those of its host only (DeviceWork::on_host).
inline constexpr LaunchSet kHostsSet = 1;
// The numbers of process sets begin here.
inline constexpr LaunchSet kFirstProcessSet = 2;

}  // namespace sirtaki::net
