// Tests of the C interface from the view of a program, with one rank.
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"

namespace {

class CAbiTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK) << sirtaki_last_error(); }
  void TearDown() override { EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK); }

  sirtaki_tensor tensor() {
    sirtaki_tensor out{};
    out.struct_size = sizeof(out);
    out.data = values_.data();
    out.dtype = SIRTAKI_F32;
    out.ndim = 1;
    out.dims = &dim_;
    return out;
  }
  sirtaki_request_args args(int op, const char* name) {
    sirtaki_request_args out{};
    out.struct_size = sizeof(out);
    out.op = op;
    out.name = name;
    out.input = tensor();
    out.prescale = 1.0;
    out.postscale = 1.0;
    return out;
  }
  // Opens a stream of one tensor.
  static sirtaki_stream open_stream(const sirtaki_tensor& described, const char* codec = nullptr) {
    const char* names[1] = {"w"};
    sirtaki_stream_args open{};
    open.struct_size = sizeof(open);
    open.name = "optimizer";
    open.count = 1;
    open.names = names;
    open.tensors = &described;
    open.reduce_op = SIRTAKI_AVERAGE;
    open.prescale = open.postscale = 1.0;
    open.codec = codec;
    sirtaki_stream stream = 0;
    EXPECT_EQ(sirtaki_stream_open(&open, &stream), SIRTAKI_OK) << sirtaki_last_error();
    return stream;
  }

  std::vector<float> values_{1, 2, 3};
  std::int64_t dim_ = 3;
};

TEST_F(CAbiTest, KnowsItsRank) {
  EXPECT_EQ(sirtaki_is_initialized(), 1);
  EXPECT_EQ(sirtaki_rank(), 0);
  EXPECT_EQ(sirtaki_size(), 1);
  EXPECT_EQ(sirtaki_local_rank(), 0);
  EXPECT_EQ(sirtaki_local_size(), 1);
  EXPECT_EQ(sirtaki_cross_rank(), 0);
  EXPECT_EQ(sirtaki_cross_size(), 1);
  EXPECT_EQ(sirtaki_is_homogeneous(), 1);
  EXPECT_NE(std::string(sirtaki_members_json()).find("\"pid\""), std::string::npos);
  EXPECT_NE(std::string(sirtaki_options_json()).find("net.backend"), std::string::npos);
  EXPECT_NE(sirtaki_stats_json(), nullptr);
}

TEST_F(CAbiTest, AllreduceInPlaceWithScale) {
  sirtaki_request_args one = args(SIRTAKI_ALLREDUCE, "x");
  one.output = one.input;
  one.postscale = 2.0;
  sirtaki_request request = 0;
  ASSERT_EQ(sirtaki_submit(&one, &request), SIRTAKI_OK) << sirtaki_last_error();
  ASSERT_EQ(sirtaki_wait(request, -1), SIRTAKI_OK) << sirtaki_last_error();
  int done = 0;
  EXPECT_EQ(sirtaki_poll(request, &done), SIRTAKI_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(values_, (std::vector<float>{2, 4, 6}));
  sirtaki_release(request);
}

TEST_F(CAbiTest, ResultOutlivesTheSession) {
  const sirtaki_request_args one = args(SIRTAKI_ALLGATHER, "x");
  sirtaki_request request = 0;
  ASSERT_EQ(sirtaki_submit(&one, &request), SIRTAKI_OK) << sirtaki_last_error();
  ASSERT_EQ(sirtaki_wait(request, 10000), SIRTAKI_OK) << sirtaki_last_error();
  sirtaki_tensor result{};
  result.struct_size = sizeof(result);
  ASSERT_EQ(sirtaki_result(request, &result, nullptr), SIRTAKI_OK) << sirtaki_last_error();
  ASSERT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
  ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK);
  ASSERT_EQ(result.dims[0], 3);
  EXPECT_EQ(std::memcmp(result.data, values_.data(), 12), 0);
  EXPECT_EQ(sirtaki_wait(request, 0), SIRTAKI_NOT_INITIALIZED);
  sirtaki_release(request);
}

TEST_F(CAbiTest, BlocksAreWrittenToTheOutput) {
  for (const sirtaki_op kind : {SIRTAKI_ALLGATHER, SIRTAKI_ALLTOALL}) {
    std::vector<float> memory(4);
    sirtaki_request_args one = args(kind, "x");
    one.output = one.input;
    const bool in_place = kind == SIRTAKI_ALLGATHER;
    one.output.data = in_place ? values_.data() : memory.data();
    sirtaki_request request = 0;
    ASSERT_EQ(sirtaki_submit(&one, &request), SIRTAKI_OK) << sirtaki_last_error();
    ASSERT_EQ(sirtaki_wait(request, 10000), SIRTAKI_OK) << sirtaki_last_error();
    EXPECT_EQ(values_, (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(memory, in_place ? std::vector<float>(4) : (std::vector<float>{1, 2, 3, 0}));
    sirtaki_tensor result{};
    result.struct_size = sizeof(result);
    const std::int64_t* received = nullptr;
    ASSERT_EQ(sirtaki_result(request, &result, in_place ? nullptr : &received), SIRTAKI_OK) << sirtaki_last_error();
    EXPECT_EQ(result.dims[0], 3);
    EXPECT_TRUE(in_place || received[0] == 3);
    sirtaki_release(request);

    const std::int64_t four = 4;
    one.output.dims = &four;
    one.output.data = memory.data();
    ASSERT_EQ(sirtaki_submit(&one, &request), SIRTAKI_OK) << sirtaki_last_error();
    EXPECT_EQ(sirtaki_wait(request, 10000), SIRTAKI_INVALID_ARGUMENT);
    EXPECT_NE(std::string(sirtaki_last_error()).find("the output has 4 elements but rank 0 receives 3"),
              std::string::npos)
        << sirtaki_last_error();
    sirtaki_release(request);
  }
}

TEST_F(CAbiTest, GroupIsAllOrNothing) {
  sirtaki_request_args two[2] = {args(SIRTAKI_ALLGATHER, "a"), args(SIRTAKI_ALLREDUCE, "b")};
  sirtaki_request requests[2] = {};
  EXPECT_EQ(sirtaki_submit_group(two, 2, requests), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_STREQ(sirtaki_last_error_tensor(), "b");
  two[1].output = two[1].input;
  ASSERT_EQ(sirtaki_submit_group(two, 2, requests), SIRTAKI_OK) << sirtaki_last_error();
  for (const sirtaki_request request : requests) {
    EXPECT_EQ(sirtaki_wait(request, 10000), SIRTAKI_OK);
    sirtaki_release(request);
  }
}

TEST_F(CAbiTest, WatchedRequestsAreTold) {
  sirtaki_request_args one = args(SIRTAKI_BARRIER, "b");
  sirtaki_request request = 0;
  ASSERT_EQ(sirtaki_submit(&one, &request), SIRTAKI_OK) << sirtaki_last_error();
  ASSERT_EQ(sirtaki_watch(request), SIRTAKI_OK);
  sirtaki_request told[4] = {};
  ASSERT_EQ(sirtaki_wait_watched(told, 4, 10000), 1);
  EXPECT_EQ(told[0], request);
  sirtaki_release(request);
}

void fulfil(void* promise) {
  static_cast<std::promise<void>*>(promise)->set_value();
}

bool told(std::promise<void>& promise) {
  return promise.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
}

TEST_F(CAbiTest, AFunctionIsCalledWhenARequestIsOverAndWhenItWas) {
  sirtaki_request_args reduce = args(SIRTAKI_ALLREDUCE, "told");
  reduce.output = reduce.input;
  sirtaki_request request = 0;
  ASSERT_EQ(sirtaki_submit(&reduce, &request), SIRTAKI_OK) << sirtaki_last_error();
  for (int time = 0; time < 2; ++time) {
    std::promise<void> over;
    ASSERT_EQ(sirtaki_on_done(request, fulfil, &over), SIRTAKI_OK) << sirtaki_last_error();
    ASSERT_TRUE(told(over));
    EXPECT_EQ(sirtaki_wait(request, 0), SIRTAKI_OK) << sirtaki_last_error();
  }
  EXPECT_EQ(sirtaki_on_done(request, nullptr, nullptr), SIRTAKI_INVALID_ARGUMENT);
  sirtaki_release(request);
  EXPECT_EQ(sirtaki_on_done(request, fulfil, nullptr), SIRTAKI_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, AFunctionIsCalledWhenAStepIsOverOrTheSession) {
  sirtaki_tensor described = tensor();
  const sirtaki_stream stream = open_stream(described);
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(sirtaki_stream_ready(stream, 0, &described, 0), SIRTAKI_OK);
    ASSERT_EQ(sirtaki_stream_finish(stream), SIRTAKI_OK);
    std::promise<void> over;
    ASSERT_EQ(sirtaki_stream_on_done(stream, fulfil, &over), SIRTAKI_OK) << sirtaki_last_error();
    ASSERT_TRUE(told(over));
    EXPECT_EQ(sirtaki_stream_wait(stream, 0), SIRTAKI_OK) << sirtaki_last_error();
  }
  std::promise<void> never_finished;
  ASSERT_EQ(sirtaki_stream_on_done(stream, fulfil, &never_finished), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_stream_on_done(stream, fulfil, &never_finished), SIRTAKI_INVALID_ARGUMENT);
  ASSERT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
  ASSERT_TRUE(told(never_finished));
  EXPECT_EQ(sirtaki_stream_wait(stream, 0), SIRTAKI_NOT_INITIALIZED);
}

TEST_F(CAbiTest, StreamReducesStepsAndTellsWhatWasUsed) {
  sirtaki_tensor described = tensor();
  const sirtaki_stream stream = open_stream(described);
  for (int step = 0; step < 3; ++step) {
    const int absent = step == 1 ? 1 : 0;
    ASSERT_EQ(sirtaki_stream_ready(stream, 0, &described, absent), SIRTAKI_OK) << sirtaki_last_error();
    ASSERT_EQ(sirtaki_stream_finish(stream), SIRTAKI_OK);
    const std::int32_t index = 0;
    if (step > 0) {
      ASSERT_EQ(sirtaki_stream_wait_tensors(stream, &index, 1, 10000), SIRTAKI_OK) << sirtaki_last_error();
    }
    ASSERT_EQ(sirtaki_stream_wait(stream, 10000), SIRTAKI_OK) << sirtaki_last_error();
    std::uint8_t used = 9;
    ASSERT_EQ(sirtaki_stream_used(stream, &used), SIRTAKI_OK);
    EXPECT_EQ(used, 1 - absent);
  }
  EXPECT_EQ(sirtaki_stream_close(stream), SIRTAKI_OK);
}

TEST_F(CAbiTest, CodecsThatCorrectMomentumTellSoAndAreRemembered) {
  values_ = {4, 1, 2};
  sirtaki_tensor described = tensor();
  const char* const codec = "group_topk:group=4,rate=25%,momentum=0.5,min=0,ndim=0,wire=gather";
  const sirtaki_stream stream = open_stream(described, codec);
  std::int64_t size = 0;
  ASSERT_EQ(sirtaki_stream_memory(stream, 0, nullptr, 0, &size), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(size, 0);
  const auto step = [&] {
    values_ = {4, 1, 2};
    EXPECT_EQ(sirtaki_stream_ready(stream, 0, &described, 0), SIRTAKI_OK) << sirtaki_last_error();
    EXPECT_EQ(sirtaki_stream_finish(stream), SIRTAKI_OK);
    EXPECT_EQ(sirtaki_stream_wait(stream, 10000), SIRTAKI_OK) << sirtaki_last_error();
    return values_;
  };
  EXPECT_EQ(step(), (std::vector<float>{4, 0, 0}));
  std::uint8_t used = 9;
  ASSERT_EQ(sirtaki_stream_used(stream, &used), SIRTAKI_OK);
  EXPECT_EQ(used, SIRTAKI_STEP);

  ASSERT_EQ(sirtaki_stream_memory(stream, 0, nullptr, 0, &size), SIRTAKI_OK);
  ASSERT_GT(size, 0);
  std::vector<std::byte> memory(static_cast<std::size_t>(size));
  ASSERT_EQ(sirtaki_stream_memory(stream, 0, memory.data(), size, &size), SIRTAKI_OK);
  // The third element has collected 2 + (1 + 2) = 5, more than the 4 of the first.
  EXPECT_EQ(step(), (std::vector<float>{0, 0, 5}));
  const std::vector<float> owed = {0, 1, 2};
  ASSERT_EQ(sirtaki_stream_set_residual(stream, 0, owed.data(), 3), SIRTAKI_OK);
  ASSERT_EQ(sirtaki_stream_set_memory(stream, 0, memory.data(), size), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(step(), (std::vector<float>{0, 0, 5}));

  EXPECT_EQ(sirtaki_stream_set_memory(stream, 0, memory.data(), size - 1), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(sirtaki_last_error()).find("'w'"), std::string::npos) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_stream_set_memory(stream, 0, nullptr, 1), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_memory(stream, 1, nullptr, 0, &size), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_memory(stream, 0, nullptr, 0, nullptr), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_close(stream), SIRTAKI_OK);
}

TEST_F(CAbiTest, WaitingForTensorsOfNoStepOrNoTensorIsAnError) {
  const sirtaki_tensor described = tensor();
  const sirtaki_stream stream = open_stream(described);
  const std::int32_t right = 0;
  const std::int32_t wrong = 1;
  EXPECT_EQ(sirtaki_stream_wait_tensors(stream, &right, 1, 10000), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(sirtaki_last_error()).find("before its step was finished"), std::string::npos);
  EXPECT_EQ(sirtaki_stream_wait_tensors(stream, &wrong, 1, 10000), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_wait_tensors(stream, nullptr, 1, 10000), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_wait_tensors(stream, &right, -1, 10000), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_close(stream), SIRTAKI_OK);
  EXPECT_EQ(sirtaki_stream_wait_tensors(stream, &right, 1, 10000), SIRTAKI_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, NullAndWrongSizesAreErrors) {
  EXPECT_EQ(sirtaki_submit(nullptr, nullptr), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_poll(1, nullptr), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_result(1, nullptr, nullptr), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_stream_open(nullptr, nullptr), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_timeline_start(""), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_EQ(sirtaki_host(2, nullptr, nullptr, nullptr), SIRTAKI_INVALID_ARGUMENT);
  sirtaki_release(0);
  sirtaki_release(~sirtaki_request{0});
  sirtaki_timeline_mark(nullptr, 0, 1);
}

TEST(CAbiClosedTest, TextsOfCodecsAreChecked) {
  EXPECT_EQ(sirtaki_check_codec("conv*=>kernel_sparse:rate=25%;*=>twobit"), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_check_codec("group_topk:rat=1%"), SIRTAKI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(sirtaki_last_error()).find("did you mean rate?"), std::string::npos) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_check_codec(nullptr), SIRTAKI_INVALID_ARGUMENT);
}

TEST(CAbiClosedTest, CallsWithoutASessionSaySo) {
  EXPECT_EQ(sirtaki_is_initialized(), 0);
  EXPECT_EQ(sirtaki_rank(), -1);
  EXPECT_EQ(sirtaki_wait(1, 0), SIRTAKI_NOT_INITIALIZED);
  EXPECT_NE(std::string(sirtaki_last_error()).find("init()"), std::string::npos);
  EXPECT_EQ(sirtaki_stats_json(), nullptr);
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
  sirtaki_request told = 0;
  EXPECT_EQ(sirtaki_wait_watched(&told, 1, 0), -1);
}

TEST_F(CAbiTest, JoinAloneReturnsAtOnceAndMayBeRepeated) {
  for (int i = 0; i < 2; ++i) {
    std::int32_t last = -1;
    EXPECT_EQ(sirtaki_join(&last, 1000), SIRTAKI_OK) << sirtaki_last_error();
    EXPECT_EQ(last, 0);
  }
  EXPECT_EQ(sirtaki_join(nullptr, 1000), SIRTAKI_OK);
}

}  // namespace
