// Ranks that hold a model together, each with other prompts and another number of them, get what
// each would get of a model of its own.
#include "floe/generation/lockstep.h"

#include <ATen/ATen.h>

#include <cstring>
#include <random>

#include "floe/comm/world.h"
#include "floe/core/str.h"
#include "floe/generation/generate.h"
#include "floe/generation/score.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/decoders/decoder.h"
#include "floe/nn/load.h"
#include "floe/shard/engine.h"
#include "tests/models/small_models.h"
#include "tests/support/ranks.h"

namespace floe::lockstep_test {
namespace {

using generation::GenerateOptions;
using generation::Lockstep;
using generation::Prompt;

struct Case {
  std::string name;
  const nlohmann::json* lm;
  bool flamingo = true;
  shard::Strategy strategy = shard::Strategy::full_shard;
  std::vector<std::string> units{"DecoderLayer", "GatedCrossAttention", "PerceiverResampler",
                                 "ViTBlock"};
};

struct Model {
  std::shared_ptr<nn::Module> module;
  models::LanguageModel* model = nullptr;
};

Model make_model(const Case& c) {
  if (c.flamingo) {
    auto made = std::make_shared<models::Flamingo>(test::small_flamingo(*c.lm));
    return {made, made.get()};
  }
  auto made = std::make_shared<models::CausalLm>(models::decoder_spec({*c.lm, "test"}));
  return {made, made.get()};
}

// The parameters of a model that has values.
class Weights : public TensorSource {
 public:
  explicit Weights(nn::Module& model) {
    for (const auto& parameter : nn::named_parameters(model)) {
      TensorInfo info{.name = parameter.name, .shape = parameter.tensor.sizes().vec()};
      tensors_.emplace(parameter.name, std::pair(info, parameter.tensor.detach().contiguous()));
    }
  }
  std::vector<std::string> names() const override { return names_in(tensors_); }
  const TensorInfo* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.first;
  }
  void read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            std::span<std::byte> out) const override {
    const float* values = tensors_.at(tensor.name).second.const_data_ptr<float>();
    std::memcpy(out.data(), values + first, static_cast<std::size_t>(count) * sizeof(float));
  }

 private:
  std::map<std::string, std::pair<TensorInfo, at::Tensor>> tensors_;
};

// Weights that are large enough for texts to differ, with open gates.
Model lively_model(const Case& c) {
  Model whole = make_model(c);
  nn::materialize(*whole.module, nullptr, 5, at::kCPU, at::kFloat);
  const at::AutoGradMode no_gradients(false);
  for (const auto& parameter : nn::named_parameters(*whole.module)) {
    at::Tensor tensor = parameter.tensor;
    if (parameter.name.ends_with("_gate")) tensor.fill_(0.7);
    if (tensor.dim() == 2) tensor.mul_(parameter.name.starts_with("vision") ? 1 : 6);
  }
  whole.module->eval();
  return whole;
}

std::vector<Prompt> prompts_of(std::mt19937& random, bool images, std::size_t count) {
  std::vector<Prompt> prompts(count);
  for (Prompt& prompt : prompts) {
    const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
    const std::int64_t pictures = images ? below(3) : 0;
    for (std::int64_t i = 0; i < pictures; ++i) prompt.ids.push_back(test::kMedia);
    for (std::int64_t t = 2 + below(6); t > 0; --t) prompt.ids.push_back(below(test::kMedia));
    if (pictures > 0) prompt.images = at::randn({pictures, 3, 28, 28});
  }
  return prompts;
}

// What a rank asks in one call.
struct Question {
  std::vector<Prompt> prompts;
  GenerateOptions text;
  std::vector<std::vector<std::int64_t>> candidates;  // some: scores are asked for
};

// Rank 0 has many questions, rank 1 one that is short, others none.
std::vector<Question> questions_of(const Case& c, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank + 3));
  at::manual_seed(static_cast<std::uint64_t>(rank));
  GenerateOptions greedy, beams;
  greedy.max_new_tokens = 5;
  greedy.eos = {test::kEndOfChunk, 3, 11, 19, 40, 77, 120};
  beams = greedy;
  beams.num_beams = 3;
  std::vector<Question> all;
  if (rank == 0) {
    all.push_back({prompts_of(random, c.flamingo, 3), greedy, {}});
    all.push_back({prompts_of(random, c.flamingo, 2), {}, {{5}, {9}}});
    all.push_back({prompts_of(random, c.flamingo, 2), beams, {}});
    all.push_back({prompts_of(random, c.flamingo, 2), {}, {{5}, {9, 17, 4}, {30, 2}}});
  } else if (rank == 1) {
    greedy.max_new_tokens = 2;
    all.push_back({prompts_of(random, false, 1), greedy, {}});
  }
  return all;
}

struct Answer {
  std::vector<std::int64_t> ids;  // of all texts, one after the other
  std::vector<double> log_probs;
};

Answer ask(models::LanguageModel& model, const Question& question, Lockstep* lockstep) {
  Answer answer;
  if (!question.candidates.empty()) {
    std::vector<generation::ScoreRequest> requests;
    for (const Prompt& prompt : question.prompts) requests.push_back({prompt, question.candidates});
    for (const auto& scores :
         generation::score(model, requests, 1024, at::kCPU, at::kFloat, lockstep))
      for (const auto& score : scores) answer.log_probs.push_back(score.log_prob);
    return answer;
  }
  const std::vector<std::uint64_t> streams(question.prompts.size(), 0);
  for (const auto& text : generation::generate_each(model, question.prompts, streams, question.text,
                                                    at::kCPU, at::kFloat, lockstep))
    answer.ids.insert(answer.ids.end(), text.ids.begin(), text.ids.end());
  return answer;
}

void check_case(const Case& c, const std::shared_ptr<comm::World>& world) {
  SCOPED_TRACE(str(c.name, ", rank ", world->rank()));
  const Model whole = lively_model(c);
  const Weights weights(*whole.module);
  const Model sliced = make_model(c);
  shard::ShardOptions options;
  options.world = world;
  options.strategy = c.strategy;
  options.trainable = std::vector<std::string>{"*lang_encoder*", "*embed*", "perceiver.*"};
  if (!c.flamingo) options.trainable = std::vector<std::string>{"*"};
  options.source = &weights;
  options.hybrid_shard_size = 2;
  const auto engine = shard::fully_shard(sliced.module, {.units = c.units}, options);
  sliced.module->eval();
  std::atomic<bool> stop{false};
  Lockstep lockstep(
      *sliced.model, at::kCPU, at::kFloat,
      [&](const std::vector<bool>& own) { return engine->any_rank_has(own); }, &stop);
  for (const Question& question : questions_of(c, world->rank())) {
    const Answer expected = ask(*whole.model, question, nullptr);
    const Answer found = ask(*sliced.model, question, &lockstep);
    EXPECT_EQ(found.ids, expected.ids);
    ASSERT_EQ(found.log_probs.size(), expected.log_probs.size());
    for (std::size_t i = 0; i < found.log_probs.size(); ++i)
      EXPECT_NEAR(found.log_probs[i], expected.log_probs[i], 1e-4);
    EXPECT_FALSE(found.ids.empty() && found.log_probs.empty());
  }
  lockstep.finish();
  EXPECT_FALSE(lockstep.stopped());
  // A stop that one rank was asked for is known to all, whether they still have passes or not.
  stop = world->rank() == 1;
  if (world->rank() == 0) ask(*sliced.model, questions_of(c, 0)[0], &lockstep);
  lockstep.finish();
  EXPECT_TRUE(lockstep.stopped());

  // Whoever goes on with passes of another kind finds its way, also a rank that has no data.
  const at::AutoGradMode no_gradients(false);
  if (world->rank() == 0) {
    const PackedBatch batch = c.flamingo ? test::batch_of_pages({{12, 1, 1, {2}}})
                                         : test::batch_of_pages({{12, 0, 0, {}}});
    models::training_loss(*sliced.model, models::prepare(*sliced.model, batch, {}));
  } else {
    engine->empty_forward();
  }
  EXPECT_FALSE(engine->any_rank_has(false));  // and all have issued the same collectives
}

void check_every_case() {
  using enum shard::Strategy;
  const auto world = test::join_world();
  check_case({"flamingo on mpt", &test::kMpt}, world);
  check_case({"causal lm", &test::kLlama, false, full_shard, {"DecoderLayer"}}, world);
  check_case({"causal lm, no_shard", &test::kNeox, false, no_shard, {"DecoderLayer"}}, world);
  check_case({"flamingo in many units",
              &test::kNeox,
              true,
              shard_grad_op,
              {"DecoderLayer", "Linear", "OutputHead", "ViTBlock"}},
             world);
  if (world->size() == 4) check_case({"flamingo in copies", &test::kLlama, true, hybrid}, world);
}

TEST_RANKS(Lockstep, TwoRanks, 2) { check_every_case(); }
TEST_RANKS(Lockstep, FourRanks, 4) { check_every_case(); }

}  // namespace
}  // namespace floe::lockstep_test
