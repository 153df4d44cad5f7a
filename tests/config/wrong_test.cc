// Wrong configurations, each with the one line it must produce.
#include <gtest/gtest.h>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "tests/config/expect_error.h"
#include "tests/config/sample_config.h"

namespace floe::config::wrong_test {
namespace {

struct Wrong {
  const char* yaml;
  std::string expected;
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.yaml; }

class WrongConfig : public testing::TestWithParam<Wrong> {};

TEST_P(WrongConfig, SaysWhereAndWhat) {
  const std::string yaml = str("run: {name: x}\n", GetParam().yaml);
  EXPECT_EQ(test::config_error([&] { load<test::SampleConfig>(parse_yaml(yaml, "x.yaml")); }),
            GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongConfig,
    testing::ValuesIn<Wrong>({
        // Keys.
        {"trian: {}", "x.yaml:2:1: unknown key 'trian'; did you mean 'train'?"},
        {"train: {clip: {nrom: 1}}",
         "x.yaml:2:22: unknown key 'train.clip.nrom'; did you mean 'norm'?"},
        {"train: {clip: {qqqqqqqq: 1}}",
         "x.yaml:2:26: unknown key 'train.clip.qqqqqqqq'; the keys here are norm, value"},
        {"lora: {rnak: 1}", "x.yaml:2:14: unknown key 'lora.rnak'; did you mean 'rank'?"},
        {"<<: {train: {}}",
         "x.yaml:2:1: unknown key '<<'; the keys here are run, dist, train, phases, lora, weights, "
         "strategy, extra"},
        {"strategy: {Sharding: hybrid}",
         "x.yaml:2:22: unknown key 'strategy.Sharding'; did you mean 'sharding'?"},
        // Types.
        {"train: 5",
         "x.yaml:2:8: train must be a block with the keys steps, trainable, packed, clip, "
         "optimizer, not 5"},
        {"train: [1]",
         "x.yaml:2:1: train must be a block with the keys steps, trainable, packed, clip, "
         "optimizer, not a list"},
        {"train: {steps: ten}", "x.yaml:2:16: train.steps must be an integer, not 'ten'"},
        {"train: {steps: 1.5}", "x.yaml:2:16: train.steps must be an integer, not 1.5"},
        {"train: {steps: 1e30}", "x.yaml:2:16: train.steps must be an integer, not 1e30"},
        {"train: {steps: 9223372036854775808}",
         "x.yaml:2:16: train.steps must be an integer, not 9223372036854775808"},
        {"train: {steps: null}", "x.yaml:2:16: train.steps must be an integer, not null"},
        {"train: {steps: true}", "x.yaml:2:16: train.steps must be an integer, not true"},
        {"train: {steps: '5'}", "x.yaml:2:16: train.steps must be an integer, not '5'"},
        {"train: {steps: [5]}", "x.yaml:2:9: train.steps must be an integer, not a list"},
        {"train: {packed: yes}", "x.yaml:2:17: train.packed must be true or false, not 'yes'"},
        {"train: {packed: 1}", "x.yaml:2:17: train.packed must be true or false, not 1"},
        {"train: {optimizer: {lr: fast}}",
         "x.yaml:2:25: train.optimizer.lr must be a number, not 'fast'"},
        {"train: {optimizer: {lr: .nan}}",
         "x.yaml:2:25: train.optimizer.lr must be a finite number, not .nan"},
        {"train: {optimizer: {lr: 1e999}}",
         "x.yaml:2:25: train.optimizer.lr must be a finite number, not 1e999"},
        {"train: {optimizer: {betas: 0.9}}",
         "x.yaml:2:28: train.optimizer.betas must be a list of 2 numbers, not 0.9"},
        {"train: {optimizer: {betas: [0.9]}}",
         "x.yaml:2:21: train.optimizer.betas must be a list of 2 numbers, not of 1"},
        {"train: {optimizer: {betas: [0.9, x]}}",
         "x.yaml:2:34: train.optimizer.betas[1] must be a number, not 'x'"},
        {"train: {optimizer: {decay: '*'}}",
         "x.yaml:2:28: train.optimizer.decay must be a list of strings, not '*'"},
        {"train: {trainable: [a, null]}",
         "x.yaml:2:24: train.trainable[1] must be a string, not null"},
        {"train: {trainable: {a: b}}",
         "x.yaml:2:9: train.trainable must be a list of strings, not a block"},
        {"dist: {init: true}",
         "x.yaml:2:14: dist.init must be a string, not true; put it in quotes"},
        {"phases: {name: a}", "x.yaml:2:1: phases must be a list of blocks, not a block"},
        {"phases: [{name: a, train: [], steps: 3000000000}]",
         "x.yaml:2:38: phases[0].steps must be an integer, not 3000000000"},
        {"weights: [1]", "x.yaml:2:1: weights must be a block of numbers by name, not a list"},
        {"weights: {laion: x}", "x.yaml:2:18: weights.laion must be a number, not 'x'"},
        {"lora: true", "x.yaml:2:7: lora must be a block with the keys rank, dropout, not true"},
        // Ranges.
        {"train: {steps: 0}", "x.yaml:2:16: train.steps is 0, but must be at least 1"},
        {"train: {clip: {norm: 0}}", "x.yaml:2:22: train.clip.norm is 0, but must be more than 0"},
        {"train: {optimizer: {betas: [0.9, 1]}}",
         "x.yaml:2:21: train.optimizer.betas is [0.9, 1], but must be less than 1"},
        {"train: {optimizer: {decay: ['']}}",
         "x.yaml:2:21: train.optimizer.decay is [\"\"], but must not be empty"},
        {"lora: {rank: 5000}", "x.yaml:2:14: lora.rank is 5000, but must be at most 4096"},
        {"phases: [{name: a, train: [], steps: -3}]",
         "x.yaml:2:38: phases[0].steps is -3, but must be at least 1"},
        {"weights: {laion: -1}", "x.yaml:2:1: weights is {laion: -1}, but must be at least 0"},
        // Choices.
        {"train: {optimizer: {type: adam}}",
         "x.yaml:2:27: train.optimizer.type is adam, but must be one of adamw, sgd; did you mean "
         "'adamw'?"},
        {"dist: {backend: gluo}",
         "x.yaml:2:17: dist.backend is gluo, but must be one of auto, gloo, nccl; did "
         "you mean 'gloo'?"},
        {"strategy: {sharding: fsdp}",
         str("x.yaml:2:22: strategy.sharding must be one of ", test::strategies(), ", not 'fsdp'")},
        {"strategy: {sharding: full_shrad}",
         str("x.yaml:2:22: strategy.sharding must be one of ", test::strategies(),
             ", not 'full_shrad'; did you mean 'full_shard'?")},
        {"strategy: {sharding: 3}",
         str("x.yaml:2:22: strategy.sharding must be one of ", test::strategies(), ", not 3")},
        {"strategy: {mixed_precision: {param: half}}",
         "x.yaml:2:37: strategy.mixed_precision.param must be a dtype such as fp32, bf16 or fp16, "
         "not 'half'"},
        {"strategy: {mixed_precision: {param: int64}}",
         "x.yaml:2:37: strategy.mixed_precision.param is int64, but must be one of fp32, bf16, "
         "fp16"},
        {"strategy: {frozen: {dtype: int4}}",
         "x.yaml:2:28: strategy.frozen.dtype must be a dtype such as fp32, bf16 or fp16, not "
         "'int4'"},
        {"strategy: {frozen: {dtype: int16}}",
         "x.yaml:2:28: strategy.frozen.dtype is int16, but must be one of fp32, bf16, fp16, int8, "
         "fp8; did you mean 'int8'?"},
        {"strategy: {activations: {keep: outputs}}",
         "x.yaml:2:32: strategy.activations.keep must be one of inputs, products, not 'outputs'"},
        {"strategy: {activations: {offload: true}}",
         "x.yaml:2:12: strategy.activations has no effect here; name what is checkpointed in "
         "activation_checkpointing beside it"},
        // The strategy and the ranks.
        {"strategy: {hybrid_shard_size: 0}",
         "x.yaml:2:31: strategy.hybrid_shard_size is 0, but must be at least 1"},
        {"strategy: {prefetch: -1}",
         "x.yaml:2:22: strategy.prefetch is -1, but must be at least 0"},
        {"strategy: {units: []}", "x.yaml:2:12: strategy.units is [], but must not be empty"},
        {"strategy: {units: [A, B, A]}", "x.yaml:2:12: strategy.units names 'A' twice; keep one"},
        {"strategy: {frozen: {residency: auto}}",
         "x.yaml:2:32: strategy.frozen.residency is auto, which needs a budget; set memory_budget "
         "beside it, such as 40GiB"},
        {"strategy: {frozen: {memory_budget: 1GiB}}",
         "x.yaml:2:36: strategy.frozen.memory_budget has no effect here; set residency: auto "
         "beside it, or remove the budget"},
        {"strategy: {frozen: {memory_budget: much}}",
         "x.yaml:2:36: strategy.frozen.memory_budget must be a size, a number with a unit such as "
         "40GiB, 512MiB or 5GB, not 'much'"},
        {"strategy: {frozen: {memory_budget: -5}}",
         "x.yaml:2:36: strategy.frozen.memory_budget must be a size, a number with a unit such as "
         "40GiB, 512MiB or 5GB, not -5"},
        {"strategy: {frozen: {residency: auto, memory_budget: 0}}",
         "x.yaml:2:53: strategy.frozen.memory_budget is 0, but must be more than 0"},
        {"strategy: {frozen: {residency: resident, sharding: node}}",
         "x.yaml:2:52: strategy.frozen.sharding has no effect here; resident copies are not "
         "sliced, so remove one of the two"},
        {"strategy: {sharding: hybrid, frozen: {sharding: node}}",
         "x.yaml:2:30: strategy.frozen has sharding: node, which has no effect beside hybrid; "
         "remove it, or choose full_shard or shard_grad_op"},
        {"strategy: {accumulate: local, cuda_graphs: true}",
         "x.yaml:2:24: strategy.accumulate is local, but a recorded pass must leave reduced "
         "gradients behind; set reduced, or cuda_graphs to false"},
        {"dist: {backend: nccl, device: cpu}",
         "x.yaml:2:31: dist.device is cpu, but backend nccl is for GPUs; use gloo"},
        {"dist: {timeout_s: 0}", "x.yaml:2:19: dist.timeout_s is 0, but must be more than 0"},
        {"dist: {init: file}", "x.yaml:2:14: dist.init must be env or tcp://HOST:PORT, not 'file'"},
        {"dist: {init: 'tcp://host'}",
         "x.yaml:2:14: dist.init must be env or tcp://HOST:PORT, not 'tcp://host'"},
        {"dist: {init: 'tcp://:80'}",
         "x.yaml:2:14: dist.init must be env or tcp://HOST:PORT, not 'tcp://:80'"},
        {"dist: {init: 'tcp://h:99999'}",
         "x.yaml:2:14: dist.init must be env or tcp://HOST:PORT, not 'tcp://h:99999'"},
        {"dist: {init: 'tcp://h:80'}",
         "x.yaml:2:14: dist.init is a tcp:// address, which needs rank and world_size; set them "
         "beside it"},
        {"dist: {rank: 1}",
         "x.yaml:2:14: dist.rank has no effect with init: env, which takes it from the "
         "environment; remove it, or set init to tcp://HOST:PORT"},
        {"dist: {init: 'tcp://h:80', rank: 4, world_size: 4}",
         "x.yaml:2:34: dist.rank is 4, but must be less than world_size, which is 4"},
    }));

}  // namespace
}  // namespace floe::config::wrong_test
