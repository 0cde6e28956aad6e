#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/fail.h"
#include "base/settings.h"

namespace trunkline {

void init_logging() {
  const std::string name = Settings::get().log_level.value_or("warning");
  const auto level = spdlog::level::from_str(name);
  if (level == spdlog::level::off && name != "off") {
    fail(ErrorKind::input, "TRUNKLINE_LOG: \"{}\" is not one of trace, debug, info, warning, error, off", name);
  }
  auto logger = std::make_shared<spdlog::logger>("trunkline", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(level);
  logger->set_pattern("%^%l%$: %v");
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace trunkline
