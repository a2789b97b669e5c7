// BadCase: an invalid input and the expected error text, for the tests of the scheduler.
#pragma once

#include <functional>
#include <string>

namespace sirtaki::scheduler {

template <class Input>
struct BadCase {
  std::string text;  // part of the error
  std::function<void(Input&)> spoil;
};

}  // namespace sirtaki::scheduler
