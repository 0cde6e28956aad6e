#include "base/settings.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "base/file.h"

namespace trunkline {
namespace {

TEST(Settings, EveryVariableIsDocumented) {
  const std::filesystem::path root = TRUNKLINE_SOURCE_DIR;
  const std::string code = read_file(root / "src/base/settings.cc");
  const std::string document = read_file(root / "docs/environment.md");
  const std::regex variable("\"([A-Z][A-Z_]+)\"");
  std::set<std::string> names;
  for (std::sregex_iterator each(code.begin(), code.end(), variable), end; each != end; ++each)
    names.insert((*each)[1]);
  EXPECT_GT(names.size(), 10u);
  for (const std::string& name : names) {
    EXPECT_NE(document.find("`" + name + "`"), std::string::npos) << "docs/environment.md does not have " << name;
  }
}

}  // namespace
}  // namespace trunkline
