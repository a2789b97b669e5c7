#include "runtime/net/batch/batch_table.h"

#include <algorithm>
#include <cstring>

namespace sirtaki::net {

Result<std::vector<BatchRecord>> read_batch_table(ConstBytes block, std::uint32_t count) {
  if (count > block.size() / sizeof(BatchRecord)) {
    return corrupt("a batch announces " + std::to_string(count) + " operations, more than its block can hold");
  }
  std::vector<BatchRecord> records(count);
  if (count > 0) {
    std::memcpy(records.data(), block.data(), count * sizeof(BatchRecord));
  }
  for (const BatchRecord& record : records) {
    if (!record.follows() && (record.begin > block.size() || record.bytes > block.size() - record.begin)) {
      return corrupt("a batch announces an input of " + std::to_string(record.bytes) + " bytes behind its block");
    }
  }
  return records;
}

}  // namespace sirtaki::net
