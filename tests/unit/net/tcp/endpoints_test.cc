#include "runtime/net/tcp/endpoints.h"

#include <gtest/gtest.h>

namespace sirtaki::net {
namespace {

TEST(Endpoints, ParseTakesBothFamiliesAndNothingElse) {
  const auto v4 = parse_endpoint("10.0.0.3:41213");
  ASSERT_TRUE(v4);
  EXPECT_EQ(v4->address, "10.0.0.3");
  EXPECT_EQ(v4->port, 41213);
  const auto v6 = parse_endpoint("[fd00::3]:80");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->address, "fd00::3");
  for (const char* bad : {"", ":1", "10.0.0.3", "10.0.0.3:", "10.0.0.3:0", "10.0.0.3:65536", "10.0.0.3:1x",
                          "fd00::3:80", "[10.0.0.3]:80", "host:80"}) {
    EXPECT_FALSE(parse_endpoint(bad)) << bad;
  }
}

TEST(Endpoints, FormatIsTheInverseOfParse) {
  for (const char* text : {"10.0.0.3:41213", "[fd00::3]:80", "[fe80::1%eth0]:5"}) {
    const auto parsed = parse_endpoint(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(format_endpoint(*parsed), text);
  }
}

TEST(Endpoints, TheControlConnectionsAddressIsTheDefault) {
  EndpointChoice choice;
  choice.control_address = "10.1.2.3";
  choice.port = 99;
  const auto endpoints = data_endpoints(choice);
  ASSERT_TRUE(endpoints);
  EXPECT_EQ(*endpoints, std::vector<std::string>{"10.1.2.3:99"});
}

TEST(Endpoints, GivenAddressesAreUsedAsTheyAre) {
  EndpointChoice choice;
  choice.control_address = "10.1.2.3";
  choice.address = "192.168.0.1, fd00::1";
  choice.port = 99;
  const auto endpoints = data_endpoints(choice);
  ASSERT_TRUE(endpoints);
  EXPECT_EQ(*endpoints, (std::vector<std::string>{"192.168.0.1:99", "[fd00::1]:99"}));
  choice.address = "not-an-address";
  EXPECT_EQ(data_endpoints(choice).status().code(), Code::kInvalidArgument);
}

TEST(Endpoints, AnInterfaceGivesItsAddressesAndAnUnknownOneNamesTheOthers) {
  EndpointChoice choice;
  choice.interface = "lo";
  choice.port = 7;
  const auto endpoints = data_endpoints(choice);
  ASSERT_TRUE(endpoints) << endpoints.status().to_string();
  EXPECT_EQ(endpoints->front(), "127.0.0.1:7");
  choice.interface = "nosuch0";
  const Status status = data_endpoints(choice).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.text().find(" lo"), std::string_view::npos) << status.to_string();
}

}  // namespace
}  // namespace sirtaki::net
