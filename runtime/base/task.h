// MoveFunction: std::function for callables that can only be moved. Task and Done are its two common signatures.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/base/status.h"

namespace sirtaki {

template <class Signature>
class MoveFunction;

template <class R, class... Args>
class MoveFunction<R(Args...)> {
 public:
  MoveFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, MoveFunction> && std::is_invocable_r_v<R, F&, Args...>)
      MoveFunction(F&& fn)  // NOLINT(google-explicit-constructor)
      : impl_(std::make_unique<Holder<std::decay_t<F>>>(std::forward<F>(fn))) {}

  explicit operator bool() const { return impl_ != nullptr; }
  R operator()(Args... args) { return impl_->call(std::forward<Args>(args)...); }

 private:
  struct Base {
    Base() = default;
    Base(const Base&) = delete;
    Base& operator=(const Base&) = delete;
    virtual ~Base() = default;
    virtual R call(Args... args) = 0;
  };
  template <class F>
  struct Holder final : Base {
    explicit Holder(F fn) : fn_(std::move(fn)) {}
    R call(Args... args) override { return fn_(std::forward<Args>(args)...); }
    F fn_;
  };
  std::unique_ptr<Base> impl_;
};

using Task = MoveFunction<void()>;
// Called exactly once, on the loop that owns the operation, never from inside the call that took it.
using Done = MoveFunction<void(Status)>;

}  // namespace sirtaki
