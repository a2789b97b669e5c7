// A message of more than 2^31 bytes. Untouched pages of the sender cost no memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

constexpr std::size_t kBytes = (std::size_t{1} << 31) + 4097;

// Zeros that use memory only once written.
class Pages {
 public:
  explicit Pages(std::size_t size)
      : size_(size),
        data_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(data_, size_); }

  bool mapped() const { return data_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  Bytes bytes() const { return {data(), size_}; }

 private:
  const std::size_t size_;
  void* const data_;
};

TEST(Large, ABroadcastOfMoreThanTwoGibibytesArrivesWhole) {
  const auto world = make_tcp_world(2);
  const Pages from(kBytes);
  const Pages to(kBytes);
  ASSERT_TRUE(from.mapped() && to.mapped());
  const std::size_t places[] = {0, (std::size_t{1} << 31) - 1, std::size_t{1} << 31, kBytes - 1};
  for (const std::size_t place : places) {
    from.data()[place] = static_cast<std::byte>(place % 251 + 1);
  }
  std::vector<CollectiveArgs> args(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    args[rank].kind = OpKind::kBroadcast;
    args[rank].tag = OpTag(1);
    args[rank].dtype = DType::kU8;
    args[rank].out = rank == 0 ? from.bytes() : to.bytes();
  }
  for (const Status& status : run_on_all(*world, args)) {
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  for (const std::size_t place : places) {
    EXPECT_EQ(to.data()[place], from.data()[place]) << place;
  }
  EXPECT_EQ(to.data()[1], std::byte{0});
}

}  // namespace
}  // namespace sirtaki::net::testing
