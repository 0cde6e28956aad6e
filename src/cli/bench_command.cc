#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/fail.h"
#include "base/settings.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/command.h"
#include "cli/group_flags.h"
#include "cli/tell_others.h"
#include "trunkline/group.h"

namespace trunkline {
namespace {

struct Flags {
  Collective collective = Collective::allreduce;
  std::string min = "32M", max, step;
  size_t factor = 2;
  int iterations = 20, warmup = 5, root = 0;
  std::string dtype = "float32";
  GroupFlags group;
  std::optional<double> min_busbw;
  bool check = false, profile = false, in_place = false, one_way = false;
  std::string json;
};

void add_flags(CLI::App& app, Flags& flags) {
  app.add_option("-b,--minbytes", flags.min, "Smallest message; units K, M, G")->check(check_size)->type_name("MIN");
  app.add_option("-e,--maxbytes", flags.max, "Largest message; without it MIN alone")
      ->check(check_size)
      ->type_name("MAX");
  app.add_option("-f,--stepfactor", flags.factor, "From one size to the next")
      ->check(CLI::Range(2, 1 << 30))
      ->type_name("FACTOR");
  app.add_option("-i,--stepbytes", flags.step, "From one size to the next, instead of a factor")
      ->check(check_size)
      ->excludes("-f")
      ->type_name("STEP");
  app.add_option("-n,--iters", flags.iterations, "Timed calls a size")
      ->check(CLI::Range(1, 10'000'000))
      ->type_name("N");
  app.add_option("-w,--warmup_iters,--warmup", flags.warmup, "Calls before them")
      ->check(CLI::Range(0, 10'000'000))
      ->type_name("N");
  app.add_option("-d,--datatype", flags.dtype, "float32, float16, bfloat16, int8 ... uint64, or f32 ... u64")
      ->check([](const std::string& name) { return dtype_from_name(name) ? "" : "\"" + name + "\" is no dtype"; })
      ->type_name("DTYPE");
  flags.group.add(app);
  app.add_option("--min-busbw", flags.min_busbw,
                 "Exit 1 if the average bus bandwidth of all sizes is below (10^9 bits a second)")
      ->check(number_between(0.0, 1e9))
      ->type_name("GBPS");
  app.add_flag("--check", flags.check, "Verify every element on every rank in N more calls; exit 1 if any is wrong");
  app.add_flag("--profile", flags.profile, "Where the time goes, by part, in nanoseconds a KiB");
  app.add_option("--json", flags.json, "Rank 0 writes a line of JSON for each size")
      ->check(check_file)
      ->type_name("FILE");
  if (flags.collective == Collective::allreduce) app.add_flag("--in-place", flags.in_place, "Result over the input");
  if (flags.collective == Collective::broadcast) {
    app.add_option("-r,--root", flags.root, "The rank that has the data")->check(CLI::NonNegativeNumber);
  }
  if (flags.collective == Collective::sendrecv) {
    app.add_flag("--one-way", flags.one_way, "Rank 0 sends, rank 1 receives (default: in turns)");
  }
}

BenchOptions options_from(const Flags& flags) {
  BenchOptions options;
  options.collective = flags.collective;
  const size_t min = *size_from(flags.min), max = flags.max.empty() ? min : *size_from(flags.max);
  if (min > max) refuse(fmt::format("-b {} is more than -e {}", flags.min, flags.max));
  const size_t step = flags.step.empty() ? 0 : *size_from(flags.step);
  if (!flags.step.empty() && step == 0) refuse("-i 0 leads to no other size");
  options.sizes = step > 0 ? sizes_by_step(min, max, step) : sizes_between(min, max, flags.factor);
  options.iterations = flags.iterations;
  options.warmup = flags.warmup;
  options.dtype = *dtype_from_name(flags.dtype);
  options.root = flags.root;
  options.in_place = flags.in_place;
  options.one_way = flags.one_way;
  options.check = flags.check;
  options.profile = flags.profile;
  return options;
}

void print(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

int measure(const Flags& flags, const BenchOptions& options, const Config& config, Group& group) {
  const bool emulated = Settings::get().fabric_fd.has_value(), first = config.rank == 0;
  JsonLines json(first ? flags.json : "");
  BenchRun bench(group, options);
  if (first) print(bench_header(group, options, config, emulated, group.cables()));
  uint64_t wrong = 0;
  double bus_bytes_s = 0;
  for (const size_t size : options.sizes) {
    const BenchResult result = bench.measure(size);
    wrong += result.wrong.value_or(0);
    bus_bytes_s += result.bus_bytes_s / static_cast<double>(options.sizes.size());
    if (!first) continue;
    print(bench_row(options, result));
    json.write(bench_json(group, options, config, emulated, result));
  }
  if (!first) return wrong == 0 ? 0 : 1;
  print(bench_footer(options, wrong, bus_bytes_s));
  const bool slow = flags.min_busbw && gbps(bus_bytes_s) < *flags.min_busbw;
  if (wrong > 0) fmt::print(stderr, "trunkline bench: {} elements are wrong\n", wrong);
  if (slow) {
    fmt::print(stderr, "trunkline bench: average bus bandwidth {:.4g} Gbps is below --min-busbw {}\n",
               gbps(bus_bytes_s), *flags.min_busbw);
  }
  return wrong > 0 || slow ? 1 : 0;
}

int run(const Flags& flags) {
  const BenchOptions options = options_from(flags);
  const Config config = flags.group.config();
  const auto group = Group::connect(config);
  return or_tell_others(*group, [&] { return measure(flags, options, config, *group); });
}

}  // namespace

Command bench_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "bench", "Measure a collective: launch -n N [--cables SPEC] -- trunkline bench allreduce -b 1K -e 64M");
  command->require_subcommand(0, 1);
  std::vector<std::pair<CLI::App*, std::shared_ptr<Flags>>> choices;
  for (const Collective collective : kAllCollectives) {
    auto flags = std::make_shared<Flags>();
    flags->collective = collective;
    CLI::App* const choice = command->add_subcommand(std::string(name_of(collective)));
    add_flags(*choice, *flags);
    choices.emplace_back(choice, flags);
  }
  const Command step = bench_step_command(*command);
  command->allow_extras();  // for require_command; what was added before does not take it over
  return {command, [command, choices, step] {
            require_command(*command);
            if (step.app->parsed()) return step.run();
            const auto chosen =
                std::find_if(choices.begin(), choices.end(), [](const auto& it) { return it.first->parsed(); });
            return run(*chosen->second);
          }};
}

}  // namespace trunkline
