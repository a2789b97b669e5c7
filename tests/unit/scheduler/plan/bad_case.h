// BadCase: an input with something wrong in it, and what the error has to say, for the scheduler's tests.
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
