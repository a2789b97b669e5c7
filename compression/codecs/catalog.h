// The codecs there are. A new one is a file in codecs/ and a row in catalog.cc.
//
// For: choosing a codec by option, and finding the one a plan decided on. Threads: any; the catalog never changes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "compression/codec.h"
#include "compression/payload_codec.h"

namespace sirtaki::compression {

// Ids ascending; the first is "none", id 0.
std::span<const Codec* const> codecs();

// nullptr: this build has no such codec.
const Codec* find_codec(std::string_view name);
const Codec* find_codec(CodecId id);

// Of an id that is known to be in the catalog.
const Codec& codec(CodecId id);

// The same of codecs with payloads, ids ascending. No id and no name is in both lists.
std::span<const PayloadCodec* const> payload_codecs();
const PayloadCodec* find_payload_codec(std::string_view name);
const PayloadCodec* find_payload_codec(CodecId id);

// "none, fp16, ...", of both lists, for messages.
std::string codec_names();

}  // namespace sirtaki::compression
