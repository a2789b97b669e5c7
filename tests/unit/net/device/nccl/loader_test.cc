#include "runtime/net/device/nccl/loader.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace sirtaki::net::nccl {
namespace {

const std::string kFolder = FAKE_FOLDER;

LoadOptions at(const std::string& file) {
  LoadOptions options;
  options.name = "libsirtaki_no_such_nccl.so.2";
  options.path = kFolder + "/" + file;
  return options;
}

TEST(NcclLoader, LoadsTheLibraryOfThePath) {
  const auto library = load(at("libfake_nccl_new.so"));
  ASSERT_TRUE(library) << library.status().to_string();
  EXPECT_EQ(library->version, 22809);
  EXPECT_EQ(library->from, kFolder + "/libfake_nccl_new.so");
  EXPECT_EQ(library->api.group_start(), Outcome::kSuccess);
}

TEST(NcclLoader, AcceptsTheOldestVersion) {
  const auto library = load(at("libfake_nccl_old.so"));
  ASSERT_TRUE(library) << library.status().to_string();
  EXPECT_EQ(library->version, kOldestNccl);
  EXPECT_NE(library->api.send, nullptr);
}

TEST(NcclLoader, RejectsOlderVersions) {
  const auto library = load(at("libfake_nccl_ancient.so"));
  ASSERT_FALSE(library);
  EXPECT_EQ(library.status().code(), Code::kUnsupported);
  EXPECT_NE(library.status().text().find("2.17.1"), std::string::npos) << library.status().to_string();
  EXPECT_NE(library.status().text().find("2.18.1"), std::string::npos) << library.status().to_string();
}

TEST(NcclLoader, NamesTheFunctionsThatAreMissing) {
  const auto library = load(at("libfake_nccl_partial.so"));
  ASSERT_FALSE(library);
  EXPECT_EQ(library.status().code(), Code::kUnsupported);
  EXPECT_NE(library.status().text().find("ncclSend, ncclRecv"), std::string::npos) << library.status().to_string();
}

TEST(NcclLoader, NamesTheLibrariesThatItTried) {
  for (const std::string& path : {std::string(), kFolder + "/no_such_file.so"}) {
    LoadOptions options = at("");
    options.path = path;
    const auto library = load(options);
    ASSERT_FALSE(library);
    EXPECT_EQ(library.status().code(), Code::kUnavailable);
    EXPECT_NE(library.status().text().find(path.empty() ? options.name : path), std::string::npos)
        << library.status().to_string();
  }
}

TEST(NcclLoader, PrefersTheCopyThatTheProcessHas) {
  LoadOptions options = at("libfake_nccl_old.so");
  options.name = "libfake_nccl_loaded.so.2";
  ASSERT_TRUE(load(options));
  EXPECT_EQ(load(options)->version, kOldestNccl);
  // Loads a copy of that name into the process first, as a framework does.
  ASSERT_NE(dlopen((kFolder + "/libfake_nccl_loaded.so").c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  const auto library = load(options);
  ASSERT_TRUE(library) << library.status().to_string();
  EXPECT_EQ(library->version, 22703);
  EXPECT_EQ(library->from, "the process");
}

TEST(NcclLoader, FormatsVersions) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace sirtaki::net::nccl
