// Where the host waits for the GPU in a steady step of the trainer: at the agreement, which decides
// whether the step counts and tells the log its numbers, and nowhere else.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <sstream>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/train/run_config.h"
#include "floe/train/setup/parallelize.h"
#include "floe/train/trainer.h"
#include "tests/io/scratch.h"

namespace floe::train::steady_trainer_test {
namespace {

// Counts what torch warns of in its mode for synchronising operators.
class CountWaits final : public c10::WarningHandler {
 public:
  CountWaits() : before_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
    c10::WarningUtils::set_warnAlways(true);
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  }
  ~CountWaits() override {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    c10::WarningUtils::set_warnAlways(false);
    c10::WarningUtils::set_warning_handler(before_);
  }
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing CUDA operation") != std::string::npos) ++count_;
  }
  std::int64_t count() const { return count_; }

 private:
  c10::WarningHandler* before_;
  std::atomic<std::int64_t> count_{0};
};

std::int64_t waits_of_a_run(std::int64_t steps, const std::vector<std::string>& more) {
  const test::Scratch scratch;
  const char* source = std::getenv("FLOE_SOURCE_DIR");
  require(source != nullptr, "set FLOE_SOURCE_DIR to the root of the sources");
  const std::string goldens = str(source, "/tests/goldens/models/");
  std::string yaml = "model:";
  std::istringstream lines(read_text(goldens + "neox_x2/model.yaml", 1 << 16));
  for (std::string line; std::getline(lines, line);) yaml += "\n  " + line;
  std::vector<std::string> words{scratch.write("model.yaml", yaml + "\n"),
                                 "model.lm=" + goldens + "neox_x2/lm",
                                 "model.vision=" + goldens + "neox_x2/vision",
                                 "model.weights=" + goldens + "neox_x2/flamingo_init.safetensors",
                                 "data.batches=" + goldens + "neox_x2-train/batches.safetensors",
                                 "run.dir=" + scratch.path(),
                                 str("train.steps=", steps),
                                 "log.tensorboard=false",
                                 "log.wandb=null",
                                 "log.diagnostics=null",
                                 "checkpoint.every_steps=null",
                                 "dist.backend=gloo",
                                 "dist.device=cuda"};
  words.insert(words.end(), more.begin(), more.end());
  const auto loaded = load_run_config(config::layers_from_arguments(words, ""));
  const auto world = join_world(loaded.config.dist);
  RunSignals signals;
  Trainer trainer(loaded, world, signals);
  const CountWaits waits;
  trainer.run();
  EXPECT_EQ(trainer.step(), steps);
  return waits.count();
}

double waits_of_a_step(const std::vector<std::string>& more = {}) {
  log::set_level(log::Level::warn);
  constexpr std::int64_t kFew = 6, kMany = 26;
  const std::int64_t few = waits_of_a_run(kFew, more), many = waits_of_a_run(kMany, more);
  const double each = static_cast<double>(many - few) / (kMany - kFew);
  std::printf("%.2f waits a step\n", each);
  return each;
}

// The losses, the norms of the gradients and what all ranks say together are read at once.
constexpr double kOfTheAgreement = 1;

TEST(SteadyTrainer, WaitsOnlyForTheAgreement) {
  const double waits = waits_of_a_step();
  EXPECT_GE(waits, 1) << "the count must see the agreement";
  EXPECT_LE(waits, kOfTheAgreement);
}
TEST(SteadyTrainer, AlsoInFp32AndCheckpointed) {
  EXPECT_LE(waits_of_a_step({"strategy.mixed_precision.param=fp32",
                             "strategy.activation_checkpointing=[DecoderLayer]"}),
            kOfTheAgreement);
}
TEST(SteadyTrainer, AlsoWithAnAverageOfTheWeights) {
  EXPECT_LE(waits_of_a_step({"train.ema.decay=0.9"}), kOfTheAgreement);
}

}  // namespace
}  // namespace floe::train::steady_trainer_test
