// What Trunkline throws. docs/errors.md says when, and what state remains.
#pragma once

#include <stdexcept>
#include <string>

namespace trunkline {

enum class ErrorKind {
  input,        // a file, flag, field or value that the user can put right; the message names it
  system,       // the operating system refused; the message names the call, its object and the cause
  peer,         // another rank died, left or said that it failed; the message names rank, host and operation
  timeout,      // a deadline passed; the message names what was awaited
  mismatch,     // ranks disagree on an operation, a setting or the weights; the message names both sides
  numeric,      // a loss or gradient that is not finite
  unsupported,  // a valid request that this build or version does not serve
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace trunkline
