#include <algorithm>

#include "floe/core/error.h"
#include "floe/migrate/openflamingo/sections.h"

namespace floe::migrate {
namespace {

// A key of a source that the run does not have.
bool is_of_missing_source(const Translation& t, std::string_view key) {
  return (key.starts_with("data.laion.") && !t.has_source("laion")) ||
         (key.starts_with("data.mmc4.") && !t.has_source("mmc4"));
}

// Batches of a source in an epoch, on each rank.
std::int64_t batches_of(const Translation& t, const std::string& source, int world) {
  const std::int64_t samples = t.flags.integer(str("--train_num_samples_", source));
  const std::int64_t batch =
      std::max<std::int64_t>(1, t.flags.integer(str("--batch_size_", source)));
  const std::int64_t workers = std::max<std::int64_t>(1, t.flags.integer("--workers"));
  const std::int64_t all = (samples + batch * world - 1) / (batch * world);
  return (all + workers - 1) / workers * workers;
}

// Whether both sources have as many batches, without which neither system trains.
void compare_batches(Translation& t) {
  const auto alone = [&](const char* source) {
    return t.flags.integer(str("--train_num_samples_", source)) /
           std::max<std::int64_t>(1, t.flags.integer(str("--batch_size_", source)));
  };
  constexpr const char* kMend = "change --train_num_samples or --batch_size";
  const int world = t.launch.world.value_or(1);
  const std::int64_t laion = batches_of(t, "laion", world), mmc4 = batches_of(t, "mmc4", world);
  if (t.launch.world && laion != mmc4)
    t.page.warn(str("an epoch has ", laion, " batches of LAION and ", mmc4, " of MMC4 on ",
                    counted(world, "rank"),
                    "; train.py and floe both refuse a run in which they differ: ", kMend));
  else if (alone("laion") != alone("mmc4"))
    t.page.warn(str("--train_num_samples by --batch_size is ", alone("laion"), " for LAION and ",
                    alone("mmc4"),
                    " for MMC4; train.py refuses that, and floe where the batches of an epoch "
                    "differ: ",
                    kMend));
  else if (t.launch.world)
    t.page.add_comment("train.epochs",
                       str("Here an epoch has ", laion, " batches of each source on ",
                           counted(world, "rank"), "."));
}

}  // namespace

void translate_data(Translation& t) {
  for (const char* source : {"laion", "mmc4"}) {
    if (t.has_source(source))
      t.copy(str("--", source, "_shards"), str("data.", source, ".shards"));
    else
      t.page.warn(str("--", source,
                      "_shards is not given, without which train.py does not start; the "
                      "configuration trains on the other source alone"));
  }
  require<ConfigError>(t.has_source("laion") || t.has_source("mmc4"),
                       "migrate: neither --laion_shards nor --mmc4_shards is given, so that there "
                       "is nothing to train on");
  const std::int64_t workers = t.flags.integer("--workers");
  if (t.flags.given("--workers"))
    t.page.set(
        "data.workers", t.flags.value("--workers", workers == 0 ? "1" : t.flags.text("--workers")),
        t.comment("--workers") + (workers == 0 ? " With 0 train.py reads in one stream too." : ""));
  if (t.is_on("--dataset_resampled")) t.copy("--dataset_resampled", "data.resampled");
}

void translate_plain_flags(Translation& t) {
  for (const Flag& flag : openflamingo_flags()) {
    const bool given = t.flags.given(flag.name);
    if (flag.copy == Copy::by_hand || (flag.copy == Copy::if_given && !given)) continue;
    if (!is_of_missing_source(t, flag.keys))
      t.copy(flag.name, flag.keys);
    else if (given)
      t.page.leave_out(str(t.flags.shown(flag.name), ": the run does not have this source."));
  }
  if (t.page.has("data.mmc4") && !t.flags.given("--mmc4_textsim_threshold"))
    t.page.warn(
        "--mmc4_textsim_threshold is not given, and no picture of MMC4 is as similar to its "
        "text as train.py's default of 30; its authors used 0.24");
}

void translate_schedule(Translation& t) {
  const std::string schedule = t.flags.text("--lr_scheduler");
  const bool known = schedule == "constant" || schedule == "linear" || schedule == "cosine";
  if (t.flags.given("--lr_scheduler")) {
    t.page.set("train.schedule.type",
               t.flags.value("--lr_scheduler", known ? schedule : "constant"),
               t.comment("--lr_scheduler"));
    if (!known)
      t.page.warn(str("--lr_scheduler ", shell_word(schedule),
                      " is none that train.py knows: it takes a "
                      "constant rate, and so does the configuration"));
  }
  const std::int64_t accumulation = t.flags.integer("--gradient_accumulation_steps");
  if (known && schedule != "constant" && accumulation > 1)
    t.page.add_comment(
        "train.schedule.type",
        str("floe's rate ends at 0 with the run; train.py's has only gone 1/", accumulation,
            " of the way by then, because it counts batches where its schedule counts "
            "updates."));
  if (t.has_source("laion") && t.has_source("mmc4")) compare_batches(t);
}

}  // namespace floe::migrate
