// The catalog of codecs. A new codec is a file in this folder and a row in runtime/base/codecs.inc (docs/adding.md).
//
// Used to choose a codec by option, and to find the codec of a plan. Threads: any; the catalog never changes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "compression/codec.h"
#include "compression/payload_codec.h"

namespace sirtaki::compression {

// Codecs in the order of runtime/base/codecs.inc; the first is "none", id 0.
std::span<const Codec* const> codecs();

// Returns nullptr if this build has no such codec.
const Codec* find_codec(std::string_view name);
const Codec* find_codec(CodecId id);

// Requires an id that is in the catalog.
const Codec& codec(CodecId id);

// The same for codecs with payloads. No id and no name is in both lists.
std::span<const PayloadCodec* const> payload_codecs();
const PayloadCodec* find_payload_codec(std::string_view name);
const PayloadCodec* find_payload_codec(CodecId id);

// Returns the names of both lists, "none, fp16, ...", for messages.
std::string codec_names();

}  // namespace sirtaki::compression
