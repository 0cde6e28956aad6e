// conform CASE...: computes golden cases and prints one line a part: the worst difference and its tolerance. Exit 1 if
// any part is past its tolerance or any case cannot be run.

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "conform/adapter_case.h"
#include "conform/golden_case.h"
#include "conform/parts.h"

namespace {

using namespace trunkline::conform;

// Whether the whole case is within tolerance.
bool run_case(std::filesystem::path directory) {
  directory = directory.lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();  // a trailing slash
  const std::string name = directory.filename().string();
  bool ok = true;
  try {
    const std::vector<PartResult> results =
        is_adapter_case(directory) ? run_parts(read_adapter_case(directory)) : run_parts(read_case(directory));
    for (const PartResult& result : results) {
      fmt::print("{:22} {:26} {:10.3g} tolerance {:7.0e}  {:4}  {}\n", name, result.part, result.worst,
                 result.tolerance, result.ok ? "ok" : "FAIL", result.note);
      ok = ok && result.ok;
    }
  } catch (const std::exception& error) {
    fmt::print("{:22} FAIL: {}\n", name, error.what());
    ok = false;
  }
  std::fflush(stdout);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: conform CASE...\n");
    return 2;
  }
  bool ok = true;
  for (int i = 1; i < argc; ++i) ok = run_case(argv[i]) && ok;
  return ok ? 0 : 1;
}
