#include "cli/group_flags.h"

#include <cmath>
#include <filesystem>
#include <map>

#include "base/fail.h"
#include "base/file.h"
#include "cli/bench_figures.h"
#include "cli/command.h"

namespace trunkline {
namespace {

template <typename T>
CLI::CheckedTransformer named(const std::map<std::string, T>& values) {
  CLI::CheckedTransformer transformer(values);
  transformer.description("");  // the option's own text has the names
  return transformer;
}

}  // namespace

std::string check_size(const std::string& text) {
  return size_from(text) ? "" : "\"" + text + "\" is not a size in bytes, such as 4096, 32K, 64M, 1G";
}

std::string check_file(const std::string& text) { return text.empty() ? "the name of a file is expected" : ""; }

void GroupFlags::add(CLI::App& app) {
  app.add_option("--workers", workers, "Threads that drive lanes: pool, per-call, single")
      ->transform(
          named<Workers>({{"pool", Workers::pool}, {"per-call", Workers::per_call}, {"single", Workers::single}}))
      ->type_name("MODE");
  app.add_option("--trunks", trunks, "Cables used to each rank (default: all)")
      ->check(CLI::Range(1, 64))
      ->type_name("K");
  app.add_option("--lanes", lanes, "Stripes of a message, each with a thread")
      ->check(CLI::Range(1, 10))
      ->type_name("L");
  app.add_option("--trunking-from", trunking_from, "Messages of so many bytes are cut among the lanes")
      ->check(check_size)
      ->type_name("SIZE");
  app.add_option("--frame-bytes", frame_bytes, "Payload of one message over a cable")
      ->check(CLI::Range(512, 4 << 20))
      ->type_name("BYTES");
  app.add_option("--algorithm", algorithm, "mesh, broadcast, ring, auto")
      ->transform(named<Algorithm>({{"auto", Algorithm::automatic},
                                    {"mesh", Algorithm::mesh},
                                    {"broadcast", Algorithm::broadcast},
                                    {"ring", Algorithm::ring}}))
      ->type_name("NAME");
  app.add_option("--crc", crc, "on, off: a checksum of every frame")
      ->transform(named<bool>({{"on", true}, {"off", false}}))
      ->type_name("on|off");
  app.add_option("--timeout", timeout, "Seconds without progress after which a rank gives up")
      ->check(number_between(0.001, 604800.0))
      ->type_name("S");
}

Config GroupFlags::config() const {
  Config config = Config::from_env();
  if (workers) config.workers = *workers;
  if (trunks) config.trunks = *trunks;
  if (lanes) config.lanes = *lanes;
  if (!trunking_from.empty()) config.trunking_from = *size_from(trunking_from);
  if (frame_bytes) config.frame_bytes = *frame_bytes;
  if (algorithm) config.algorithm = *algorithm;
  if (crc) config.checksum = *crc;
  if (timeout) config.timeout = std::chrono::milliseconds(std::lround(*timeout * 1e3));
  return config;
}

JsonLines::JsonLines(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  // As lines of `bench` and of `bench step` begin.
  if (std::filesystem::is_regular_file(path_) &&
      !may_be_replaced(std::filesystem::canonical(path_), {R"({"bytes":)", R"({"iteration_s":)"})) {
    fail(ErrorKind::input, "--json: {} is there already and does not hold a benchmark's lines: name another file",
         path_);
  }
  file_.open(path_, std::ios::trunc);
  require();
}

void JsonLines::write(const nlohmann::ordered_json& line) {
  if (path_.empty()) return;
  file_ << line.dump() << '\n' << std::flush;
  require();
}

void JsonLines::require() {
  if (!file_) fail_errno("--json: writing {}", path_);
}

}  // namespace trunkline
