// Batch table: the description of the operations in a batch, as it lies in shared memory and in messages.
//
// A block begins with one record for each operation; the inputs follow, each at the beginning of a cache line. Ranks of
// one machine and one build share the byte order. Plain values and pure functions, for BatchExchange.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

struct BatchRecord {
  std::uint64_t tag = 0;
  std::uint32_t check = 0;
  std::uint32_t bytes = 0;
  std::uint32_t begin = 0;  // place of the input in the block; 0: it follows in a message of the operation
  std::uint32_t unused = 0;

  bool follows() const { return begin == 0; }
};

// The message about a batch.
struct BatchNotice {
  std::uint32_t count = 0;  // number of records; 0: nothing but an answer
  std::uint32_t page = 0;   // first page of the block
  std::uint32_t bytes = 0;  // size of the block; 0: no block, and `single` is the only record
  std::uint32_t read = 0;   // number of batches of the receiver that the sender has read
  BatchRecord single;
};

// Rounds up to whole cache lines.
constexpr std::size_t line_up(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

// Returns a copy of the table, which its owner could change. Returns kCorrupt if the table or an input ends behind the
// block.
Result<std::vector<BatchRecord>> read_batch_table(ConstBytes block, std::uint32_t count);

}  // namespace sirtaki::net
