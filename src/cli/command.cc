#include "cli/command.h"

namespace trunkline {

void require_command(const CLI::App& app) {
  const std::vector<std::string> others = app.remaining();
  if (!others.empty() && others[0].starts_with('-')) refuse(app.get_name() + " has no option " + others[0]);
  if (!app.get_subcommands().empty() && others.empty()) return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  refuse(fmt::format("{} {}: its commands are {}", app.get_name(),
                     others.empty() ? "needs a command" : "has no command \"" + others[0] + "\"",
                     fmt::join(names, ", ")));
}

}  // namespace trunkline
