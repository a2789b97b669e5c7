// The codecs there are. A new one is a file in codecs/ and a row in catalog.cc.
//
// For: choosing a codec by option, and finding the one a plan decided on. Threads: any; the catalog never changes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "compression/codec.h"

namespace sirtaki::compression {

// Ids ascending; the first is "none", id 0.
std::span<const Codec* const> codecs();

// nullptr: this build has no such codec.
const Codec* find_codec(std::string_view name);
const Codec* find_codec(std::uint16_t id);

// Of an id that is known to be in the catalog.
const Codec& codec(std::uint16_t id);

// "none, fp16, ...", for messages.
std::string codec_names();

}  // namespace sirtaki::compression
