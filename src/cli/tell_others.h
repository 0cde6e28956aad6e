// What a command does in a group: where it fails, the other ranks are told why.
#pragma once

#include <exception>

#include "trunkline/group.h"

namespace trunkline {

// body(), or else.
template <typename Body>
int or_tell_others(Group& group, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    group.abort(error.what());
    throw;
  }
}

}  // namespace trunkline
