// Puts the ranks of a job on emulated cables. docs/fabric.md.
#pragma once

#include <filesystem>

#include "base/fd.h"
#include "base/process.h"
#include "base/settings.h"
#include "cluster/cables.h"

namespace trunkline {

// Files without a name that ranks inherit: nothing of them is left once the last process is gone, however it went.
struct Fabric {
  Fd state;                       // begins with the wiring; the emulated devices keep their state in the rest
  Fd matrix;                      // JSON: which rank has which devices to which other
  std::filesystem::path library;  // the folder where the emulated libibverbs.so.1 lies
};

// Throws Error(unsupported) where there is no emulation, Error(system) if its library does not lie beside this program.
Fabric open_fabric(const Wiring& wiring);

// What a rank finds in its environment; without a fabric, nothing of one that the launcher itself may be on.
decltype(ProcessOptions::environment) fabric_environment(const Fabric* fabric, const Settings& settings);

}  // namespace trunkline
