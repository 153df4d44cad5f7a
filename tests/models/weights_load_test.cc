// Weights over ranks: each reads the byte ranges that it owns and holds little more, saving takes
// part on all ranks and writes on one, and rows that are new are the same however they are sliced.
#include <ATen/ATen.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/core/hash.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/build.h"
#include "floe/models/weights/save.h"
#include "floe/nn/load.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/io/scratch.h"
#include "tests/support/ranks.h"

namespace floe::weights_load_test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

struct Size {
  std::int64_t vocab, dim, mlp, layers, shards;
  DType dtype = DType::f32;
};
constexpr Size kSmall{8192, 512, 1408, 6, 5};  // 0.1 GB
constexpr Size kNarrow{8192, 512, 1408, 6, 5, DType::bf16};
constexpr Size kLarge{32000, 2048, 5504, 8, 7};  // 2.1 GB

// Element i of a tensor as a file of that type holds it, so that a wrong place in a file shows.
float value_at(std::uint64_t key, std::int64_t i, DType dtype) {
  const std::uint64_t word = (static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL) ^ key;
  const float value = static_cast<float>(word >> 40) * 0x1p-24f;
  return dtype == DType::bf16 ? static_cast<float>(c10::BFloat16(value)) : value;
}

// A Hugging Face folder of a LLaMA in shards, written piece by piece.
void write_model(const test::Scratch& scratch, const Size& size) {
  const nlohmann::json config{{"model_type", "llama"},
                              {"vocab_size", size.vocab},
                              {"hidden_size", size.dim},
                              {"intermediate_size", size.mlp},
                              {"num_hidden_layers", size.layers},
                              {"num_attention_heads", 8}};
  scratch.write("config.json", config.dump());
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors{
      {"model.embed_tokens.weight", {size.vocab, size.dim}},
      {"lm_head.weight", {size.vocab, size.dim}},
      {"model.norm.weight", {size.dim}}};
  for (std::int64_t i = 0; i < size.layers; ++i) {
    const std::string layer = str("model.layers.", i, ".");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      tensors.push_back({str(layer, "self_attn.", name, ".weight"), {size.dim, size.dim}});
    for (const char* name : {"gate_proj", "up_proj"})
      tensors.push_back({str(layer, "mlp.", name, ".weight"), {size.mlp, size.dim}});
    tensors.push_back({layer + "mlp.down_proj.weight", {size.dim, size.mlp}});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      tensors.push_back({str(layer, name, ".weight"), {size.dim}});
  }
  nlohmann::json map;
  const at::Tensor piece = at::empty({1 << 18});
  for (std::int64_t s = 0; s < size.shards; ++s) {
    const std::string file = str("model-", s, ".safetensors");
    SafetensorsWriter writer(scratch.path(file), {{"format", "pt"}});
    for (std::size_t t = static_cast<std::size_t>(s); t < tensors.size();
         t += static_cast<std::size_t>(size.shards)) {
      map[tensors[t].first] = file;
      writer.declare(tensors[t].first, size.dtype, tensors[t].second);
    }
    for (std::size_t t = static_cast<std::size_t>(s); t < tensors.size();
         t += static_cast<std::size_t>(size.shards)) {
      const auto& [name, shape] = tensors[t];
      std::int64_t numel = 1;
      for (const std::int64_t n : shape) numel *= n;
      const std::uint64_t key = hash64(name);
      for (std::int64_t done = 0; done < numel;) {
        const std::int64_t count = std::min(numel - done, piece.numel());
        float* out = piece.mutable_data_ptr<float>();
        for (std::int64_t i = 0; i < count; ++i) out[i] = value_at(key, done + i, size.dtype);
        const at::Tensor stored = piece.narrow(0, 0, count).to(nn::torch_dtype(size.dtype));
        writer.write(name,
                     {static_cast<const std::byte*>(stored.const_data_ptr()), stored.nbytes()});
        done += count;
      }
    }
    writer.finish();
  }
  scratch.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
}

// In bytes, of this process.
std::int64_t status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word)
    if (word == key + ":") {
      std::int64_t kib = 0;
      file >> kib;
      return kib * 1024;
    }
  throw Error("/proc/self/status has no " + key);
}

// Forgets the highest memory so far.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

models::BuiltModel build(const std::string& folder) {
  models::ModelConfig config;
  config.type = models::ModelConfig::Type::causal_lm;
  config.lm = folder;
  return models::build_model(config, /*seed=*/0);
}

std::int64_t file_bytes(const TensorSource& source) {
  std::int64_t total = 0;
  for (const std::string& name : source.names()) total += source.get(name).bytes();
  return total;
}

// Runs on each of 4 ranks.
void load_own_part() {
  // What is freed leaves the process at once: the peaks are of what is held, not of what malloc
  // keeps.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const auto world = test::join_world();
  const models::BuiltModel built = build(std::getenv("FLOE_TEST_MODEL"));
  shard::ShardOptions options;
  options.world = world;
  options.source = built.source.get();
  const std::int64_t before = status("VmRSS");
  reset_peak();
  const auto engine = shard::fully_shard(built.module, {.units = {"DecoderLayer"}}, options);
  const std::int64_t extra = status("VmHWM") - before;

  const std::int64_t shard_bytes =
      engine->memory().trainable_slices + engine->memory().frozen_slices;
  EXPECT_LE(extra, shard_bytes + 64 * kMiB);
  EXPECT_GE(extra, shard_bytes / 2) << "the peak was not measured";
  const DType dtype = built.source->get("model.norm.weight").dtype;
  const std::int64_t whole = file_bytes(*built.source);
  EXPECT_GT(whole / size_of(dtype) * 4, shard_bytes + 64 * kMiB)
      << "the model is too small to tell";
  std::int64_t owned = 0;
  for (const auto& group : engine->groups())
    for (const shard::Piece& piece : group->pieces()) owned += size_of(dtype) * piece.numel;
  EXPECT_EQ(built.source->bytes_read(), static_cast<std::uint64_t>(owned));
  EXPECT_LE(owned, whole / 4 + kMiB);
  std::cerr << "rank " << world->rank() << ": shard " << shard_bytes / kMiB
            << " MiB, peak of loading " << extra / kMiB << " MiB, read " << owned / kMiB << " of "
            << whole / kMiB << " MiB\n";

  for (const auto& group : engine->groups())
    for (const shard::Piece& piece : group->pieces()) {
      const std::uint64_t key = hash64(group->parameter(piece.index).name);
      const float* at = group->slice().const_data_ptr<float>() + piece.slice_offset;
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < piece.numel; ++i)
        wrong += at[i] != value_at(key, piece.first + i, dtype);
      EXPECT_EQ(wrong, 0) << group->parameter(piece.index).name;
    }

  // Back into files, through the largest parameter and a unit around it at a time.
  const std::string out = str(std::getenv("FLOE_TEST_MODEL"), "/out");
  const std::int64_t held = status("VmRSS");
  reset_peak();
  models::SaveOptions how{.source = built.source.get(), .write = world->rank() == 0};
  how.max_shard_bytes = whole / 3;
  models::save_language_model(
      *built.model, std::getenv("FLOE_TEST_MODEL"), out,
      [&](const std::string& name) { return engine->full_parameter(name); }, how);
  std::int64_t largest = 0;
  for (const auto& group : engine->groups()) {
    std::int64_t bytes = 0;
    for (const auto& parameter : group->plan().parameters)
      bytes += 4 * engine->plan().parameters[parameter].numel;
    largest = std::max(largest, bytes);
  }
  const std::int64_t saving = status("VmHWM") - held;
  EXPECT_LE(saving, 2 * largest + 16 * kMiB);
  std::cerr << "rank " << world->rank() << ": peak of saving " << saving / kMiB
            << " MiB, largest group " << largest / kMiB << " MiB\n";
  if (world->rank() == 0) {
    const auto written = open_tensors(out), source = open_tensors(std::getenv("FLOE_TEST_MODEL"));
    EXPECT_EQ(written->names(), source->names());
    for (const std::string& name : source->names())
      EXPECT_TRUE(nn::read_tensor(*written, written->get(name))
                      .equal(nn::read_tensor(*source, source->get(name))))
          << name;
  }
  engine->any_rank_has(false);  // rank 0 is done as well
}

void run_with_model(const char* name, const Size& size, std::chrono::seconds limit) {
  std::unique_ptr<test::Scratch> scratch;
  if (!test::is_rank()) {
    scratch = std::make_unique<test::Scratch>();
    write_model(*scratch, size);
    setenv("FLOE_TEST_MODEL", scratch->path().c_str(), 1);
  }
  test::run_on_ranks("WeightsLoad", name, 4, load_own_part, limit);
}

TEST(WeightsLoad, ARankReadsAndHoldsOnlyItsPart) {
  run_with_model("ARankReadsAndHoldsOnlyItsPart", kSmall, std::chrono::seconds(240));
}

TEST(WeightsLoad, TypesChangeOnTheWay) {
  run_with_model("TypesChangeOnTheWay", kNarrow, std::chrono::seconds(240));
}

TEST(WeightsLoad, TwoGigabytes) {
  run_with_model("TwoGigabytes", kLarge, std::chrono::seconds(1200));
}

// The golden OPT Flamingo.
models::ModelConfig golden_flamingo() {
  const std::string folder = str(std::getenv("FLOE_SOURCE_DIR"), "/tests/goldens/models/opt_x1/");
  models::ModelConfig config;
  config.lm = folder + "lm";
  config.vision = folder + "vision";
  config.weights = folder + "flamingo_init.safetensors";
  config.perceiver = {.depth = 2, .dim_head = 8, .heads = 2, .num_latents = 6, .ff_mult = 1};
  config.cross_attn = {.dim_head = 8, .heads = 2, .ff_mult = 1};
  config.media_token_id = 116;
  config.endofchunk_token_id = 115;
  return config;
}

shard::ShardOptions golden_options(const models::BuiltModel& built) {
  shard::ShardOptions options;
  options.world = test::join_world();
  options.source = built.source.get();
  return options;
}

const shard::Policy kFlamingoUnits{.units = {"DecoderLayer", "GatedCrossAttention"}};

TEST_RANKS(WeightsLoad, OneRankWritesTheTrainedPart, 3) {
  const models::ModelConfig config = golden_flamingo();
  const models::BuiltModel built = models::build_model(config, 0);
  const auto engine = shard::fully_shard(built.module, kFlamingoUnits, golden_options(built));
  const bool writes = engine->world().rank() == 1;
  const test::Scratch scratch;
  const models::WholeParameter whole = [&](const std::string& name) {
    return engine->full_parameter(name);
  };
  for (const char* file : {"part.pt", "part.safetensors"}) {
    models::save_trained_part(*built.model, scratch.path(file), whole,
                              {.source = built.source.get(), .write = writes});
    if (!writes) {
      EXPECT_FALSE(std::filesystem::exists(scratch.path(file)));
      continue;
    }
    const auto written = open_tensors(scratch.path(file)), expected = open_tensors(config.weights);
    EXPECT_EQ(written->names(), expected->names());
    for (const std::string& name : expected->names())
      EXPECT_TRUE(nn::read_tensor(*written, written->get(name))
                      .equal(nn::read_tensor(*expected, expected->get(name))))
          << name;
  }
}

TEST_RANKS(WeightsLoad, AFailedWriteLeavesNoRankWaiting, 2) {
  const models::BuiltModel built = models::build_model(golden_flamingo(), 0);
  const auto engine = shard::fully_shard(built.module, kFlamingoUnits, golden_options(built));
  const bool writes = engine->world().rank() == 0;
  const test::Scratch scratch;
  scratch.write("file", "");
  const models::WholeParameter whole = [&](const std::string& name) {
    return engine->full_parameter(name);
  };
  const models::SaveOptions how{.source = built.source.get(), .write = writes};
  const auto fails = [&](auto&& save) {
    if (writes)
      EXPECT_THROW(save(), Error);
    else
      save();
    EXPECT_TRUE(engine->any_rank_has(writes));  // everybody is here
  };
  fails([&] { models::save_trained_part(*built.model, scratch.path("none/part.pt"), whole, how); });
  fails([&] {
    models::save_flamingo(*built.model, scratch.path("none/all.safetensors"), whole, how);
  });
  fails([&] {
    models::save_language_model(*built.model, golden_flamingo().lm, scratch.path("file/lm"), whole,
                                how);
  });
  fails([&] {
    models::save_vision(*built.model, models::VisionNames::open_clip, scratch.path("file/v"), whole,
                        how);
  });
}

// With tokens beyond the table of the files: four rows are new, the last two of them train.
models::ModelConfig longer_vocabulary() {
  models::ModelConfig config = golden_flamingo();
  config.weights.clear();
  config.media_token_id = 121;
  config.endofchunk_token_id = 120;
  return config;
}

TEST(Vocabulary, NewRowsAreTheSameHoweverTheyAreRead) {
  const models::BuiltModel built = models::build_model(longer_vocabulary(), 3);
  const std::string name = "lang_encoder.model.decoder.embed_tokens.weight";
  const TensorInfo& info = built.source->get(name);
  const at::Tensor whole = nn::read_tensor(*built.source, info);
  ASSERT_EQ(whole.size(0), 122);
  const at::Tensor flat = whole.view({-1});
  for (const std::int64_t step : {1, 3, 17, 1000}) {
    at::Tensor sliced = at::empty_like(flat);
    for (std::int64_t at = 0; at < flat.numel(); at += step)
      nn::read_elements(*built.source, info, at,
                        sliced.narrow(0, at, std::min(step, flat.numel() - at)));
    EXPECT_TRUE(sliced.equal(flat)) << step;
  }
  // Trained rows are those of the table, in the order of <image>, <|endofchunk|>.
  const at::Tensor rows = nn::read_tensor(
      *built.source, built.source->get("lang_encoder.model.decoder.embed_tokens.rows"));
  EXPECT_TRUE(rows[0].equal(whole[121]) && rows[1].equal(whole[120]));
  EXPECT_GT(rows.abs().max().item<float>(), 0);
  const models::BuiltModel other = models::build_model(longer_vocabulary(), 4);
  EXPECT_FALSE(nn::read_tensor(*other.source, other.source->get(name)).equal(whole));
}

TEST_RANKS(Vocabulary, NewRowsAreTheSameOnEveryNumberOfRanks, 3) {
  const models::BuiltModel built = models::build_model(longer_vocabulary(), 3);
  const auto engine = shard::fully_shard(built.module, kFlamingoUnits, golden_options(built));
  for (const char* part : {"weight", "rows"}) {
    const std::string name = str("lang_encoder.model.decoder.embed_tokens.", part);
    EXPECT_TRUE(engine->full_parameter(name).equal(
        nn::read_tensor(*built.source, built.source->get(name))));
  }
}

TEST(AssembledSource, RefusesRequestsOutsideOfATensor) {
  const models::BuiltModel built = models::build_model(golden_flamingo(), 0);
  const TensorInfo& info = built.source->get("perceiver.latents");
  std::vector<std::byte> out(4);
  EXPECT_THROW(built.source->read(info, info.numel(), 1, out), DataError);
  EXPECT_THROW(built.source->read(info, -1, 1, out), DataError);
  EXPECT_THROW(built.source->read(info, 0, 2, out), DataError);
  TensorInfo foreign = info;
  foreign.name = "nothing";
  EXPECT_THROW(built.source->read(foreign, 0, 1, out), DataError);
}

}  // namespace
}  // namespace floe::weights_load_test
