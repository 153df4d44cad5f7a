#include "floe/generation/generate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/generation/token_choice.h"
#include "floe/models/decoders/decoder.h"

namespace floe::generation {

void GenerateOptions::validate() const {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    require<ConfigError>(value >= least, name, " is ", value, ", but must be at least ", least);
  };
  at_least("max_new_tokens", max_new_tokens, 1);
  at_least("min_new_tokens", min_new_tokens, 0);
  at_least("num_beams", num_beams, 1);
  at_least("num_return_sequences", num_return_sequences, 1);
  at_least("no_repeat_ngram", no_repeat_ngram, 0);
  at_least("top_k", top_k, 0);
  require<ConfigError>(min_new_tokens <= max_new_tokens, "min_new_tokens is ", min_new_tokens,
                       ", more than max_new_tokens, which is ", max_new_tokens);
  require<ConfigError>(repetition_penalty > 0, "repetition_penalty is ", repetition_penalty,
                       ", but must be above 0; 1 means none");
  require<ConfigError>(temperature > 0, "temperature is ", temperature,
                       ", but must be above 0; without sampling the most likely token is taken");
  require<ConfigError>(top_p > 0 && top_p <= 1, "top_p is ", top_p,
                       ", but must be above 0 and at most 1");
  require<ConfigError>(num_beams == 1 || num_return_sequences <= num_beams,
                       "num_return_sequences is ", num_return_sequences, ", but there are only ",
                       num_beams, " beams; raise num_beams");
  require<ConfigError>(num_beams > 1 || sample || num_return_sequences == 1,
                       "num_return_sequences is ", num_return_sequences,
                       ", but without beams and sampling there is only one; raise num_beams or "
                       "turn sampling on");
}

namespace {

using Texts = std::vector<std::vector<std::int64_t>>;

// New tokens that the cache has room for from the beginning; most texts end long before a million.
constexpr std::int64_t kMostRoom = 1024;

// Throws ConfigError. `name`: of the prompt, for messages.
void check_length(const Prompt& prompt, const std::string& name, const models::DecoderSpec& spec,
                  std::int64_t max_new_tokens) {
  if (spec.positions != models::Positions::learned) return;
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  // The last new token is never given to the model.
  const std::int64_t positions = spec.position_rows - spec.position_offset;
  require<ConfigError>(length <= positions, name, " has ", length,
                       " tokens, but the model has only ", positions, " positions; shorten it");
  require<ConfigError>(length + max_new_tokens - 1 <= positions, name, " has ", length,
                       " tokens and ", max_new_tokens, " may follow, but the model has only ",
                       positions, " positions; let at most ", positions - length + 1,
                       " follow, or shorten it");
}

std::int64_t num_markers(const Prompt& prompt, const models::LanguageModel& model) {
  return std::count(prompt.ids.begin(), prompt.ids.end(), model.media_token());
}

void check_images(const Prompt& prompt, const std::string& name,
                  const models::LanguageModel& model) {
  const std::int64_t images = prompt.images.defined() ? prompt.images.size(0) : 0;
  require<ConfigError>(images == 0 || model.media_token() >= 0, name,
                       " has images, but the model takes none; leave them out");
  if (model.media_token() < 0) return;
  const std::int64_t side = model.image_size();
  require<DataError>(
      images == 0 || (prompt.images.dim() == 4 && prompt.images.size(1) == 3 &&
                      prompt.images.size(2) == side && prompt.images.size(3) == side),
      name, ": images must have the shape [n, 3, ", side, ", ", side, "], not [",
      images == 0 ? "" : join(prompt.images.sizes()), "]");
  require<ConfigError>(images > 0 || num_markers(prompt, model) == 0, name, " has ",
                       num_markers(prompt, model), " <image> but no image; give as many");
}

void warn_of(const Prompt& prompt, const std::string& name, const models::LanguageModel& model,
             const models::DecoderSpec& spec, std::int64_t max_new_tokens) {
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  if (spec.positions != models::Positions::learned && spec.context > 0 &&
      length + max_new_tokens > spec.context)
    log::warn(name, " has ", length, " tokens and ", max_new_tokens,
              " may follow; the model was made for ", spec.context, " in all");
  if (model.media_token() < 0) return;
  const std::int64_t images = prompt.images.defined() ? prompt.images.size(0) : 0;
  const std::int64_t markers = num_markers(prompt, model);
  if (images > markers)
    log::warn(name, " has ", images, " images but only ", markers,
              " <image>; no text looks at the rest");
  if (images < markers)
    log::warn(name, " has ", markers, " <image> but only ", images,
              " images; text behind a surplus <image> looks at all images alike");
}

std::string name_of(std::size_t prompt, std::size_t prompts) {
  return prompts == 1 ? "the prompt" : str("prompt ", prompt + 1);
}

void check(const models::LanguageModel& model, const std::vector<Prompt>& prompts,
           const GenerateOptions& options) {
  options.validate();
  const models::DecoderSpec& spec = require_decoder(model).spec();
  for (const std::int64_t token : options.eos)
    require<ConfigError>(token >= 0 && token < spec.vocab, "the end token ", token,
                         " lies outside of the model's vocabulary of ", spec.vocab);
  for (std::size_t p = 0; p < prompts.size(); ++p)
    check_prompt(model, prompts[p], name_of(p, prompts.size()), options.max_new_tokens);
}

// Prompts with the draws that each gets.
struct Batch {
  const std::vector<Prompt>& prompts;
  std::vector<std::uint64_t> streams;
  Company company = Company::one_batch;
};

std::vector<Generated> by_beams(GenerateSession& session, const Batch& batch,
                                const GenerateOptions& options) {
  const std::vector<Prompt>& prompts = batch.prompts;
  const LogitsRules rules(options);
  BeamSearch beams(static_cast<std::int64_t>(prompts.size()), options, batch.company,
                   batch.streams);
  Texts texts;  // of each open beam, with its prompt
  for (const Prompt& prompt : prompts)
    texts.insert(texts.end(), static_cast<std::size_t>(options.num_beams), prompt.ids);
  if (options.on_step) options.on_step(0);
  // The prompts are read once, then every beam has its copy.
  at::Tensor logits = session.start().repeat_interleave(options.num_beams, 0);
  session.repeat(options.num_beams);
  for (std::int64_t num_new = 0;;) {
    at::Tensor scores = logits.log_softmax(-1);
    if (options.sample) scores = scores.cpu();  // where draws are made
    if (rules.change(num_new)) rules.apply(scores, texts, num_new);
    ++num_new;
    const BeamSearch::Next next = beams.advance(scores);
    if (beams.done()) break;
    Texts continued;
    for (std::size_t s = 0; s < next.from.size(); ++s) {
      continued.push_back(texts[static_cast<std::size_t>(next.from[s])]);
      continued.back().push_back(next.tokens[s]);
    }
    texts = std::move(continued);
    if (options.on_step) options.on_step(num_new);
    session.reorder(next.from, next.places);
    logits = session.step(next.tokens);
  }
  std::vector<Generated> generated;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const auto& best = beams.finished(static_cast<std::int64_t>(p));
    for (std::int64_t i = 0; i < options.num_return_sequences; ++i) {
      const BeamSearch::Text& text = best[static_cast<std::size_t>(i)];
      generated.push_back({p, text.ids, text.score});
    }
  }
  return generated;
}

// Greedy or by sampling: every text on its own.
std::vector<Generated> one_by_one(GenerateSession& session, const Batch& batch,
                                  const GenerateOptions& options) {
  const std::vector<Prompt>& prompts = batch.prompts;
  const LogitsRules rules(options);
  const Sampler sampler(options.seed);
  std::vector<Generated> generated;
  Texts texts;                       // of the sequences that are not at their end
  std::vector<std::size_t> results;  // where each of them is in `generated`
  std::vector<std::uint64_t> draws;  // the stream of each result
  for (std::size_t p = 0; p < prompts.size(); ++p)
    for (std::int64_t i = 0; i < options.num_return_sequences; ++i) {
      results.push_back(generated.size());
      draws.push_back(batch.streams[p] * static_cast<std::uint64_t>(options.num_return_sequences) +
                      static_cast<std::uint64_t>(i));
      generated.push_back({p, {}, std::nullopt});
      texts.push_back(prompts[p].ids);
    }
  if (options.on_step) options.on_step(0);
  at::Tensor logits = session.start().repeat_interleave(options.num_return_sequences, 0);
  session.repeat(options.num_return_sequences);
  for (std::int64_t num_new = 0;;) {
    if (options.sample) logits = logits.cpu();  // where draws are made
    if (rules.change(num_new)) rules.apply(logits, texts, num_new);
    const at::Tensor likeliest = logits.argmax(-1).cpu();
    const auto vocab = static_cast<std::size_t>(logits.size(1));
    Texts still;
    std::vector<std::size_t> still_results;
    std::vector<std::int64_t> tokens, kept;
    for (std::size_t s = 0; s < texts.size(); ++s) {
      const auto draw = [&] {
        const std::span<const float> row(logits.const_data_ptr<float>() + s * vocab, vocab);
        return sampler.draw(row, 1, draws[results[s]], static_cast<std::uint64_t>(num_new))[0];
      };
      const std::int64_t token =
          options.sample ? draw() : likeliest.const_data_ptr<std::int64_t>()[s];
      generated[results[s]].ids.push_back(token);
      if (std::find(options.eos.begin(), options.eos.end(), token) != options.eos.end()) continue;
      kept.push_back(static_cast<std::int64_t>(s));
      tokens.push_back(token);
      texts[s].push_back(token);
      still.push_back(std::move(texts[s]));
      still_results.push_back(results[s]);
    }
    if (++num_new == options.max_new_tokens || kept.empty()) return generated;
    if (options.on_step) options.on_step(num_new);
    if (kept.size() < texts.size()) session.keep(kept);
    texts = std::move(still);
    results = std::move(still_results);
    logits = session.step(tokens);
  }
}

std::vector<Generated> run(models::LanguageModel& model, const Batch& batch,
                           const GenerateOptions& options, const SessionOptions& how,
                           at::Device device, at::ScalarType dtype) {
  GenerateSession session(model, batch.prompts, device, dtype, how);
  return options.num_beams > 1 ? by_beams(session, batch, options)
                               : one_by_one(session, batch, options);
}

}  // namespace

void check_prompt(const models::LanguageModel& model, const Prompt& prompt, const std::string& name,
                  std::int64_t max_new_tokens) {
  const models::DecoderSpec& spec = require_decoder(model).spec();
  const std::vector<std::int64_t>& ids = prompt.ids;
  require<ConfigError>(!ids.empty(), name, " is empty; give at least one token");
  const auto known = [&](std::int64_t token) { return token >= 0 && token < spec.vocab; };
  const auto wrong = std::find_if_not(ids.begin(), ids.end(), known);
  require<ConfigError>(wrong == ids.end(), name, ": token ", wrong == ids.end() ? 0 : *wrong,
                       " lies outside of the model's vocabulary of ", spec.vocab);
  check_length(prompt, name, spec, max_new_tokens);
  check_images(prompt, name, model);
}

const models::Decoder& require_decoder(const models::LanguageModel& model) {
  require<ConfigError>(model.decoder() != nullptr, "a '", model.info().family,
                       "' fills in masked tokens and cannot continue text; name a model that can");
  return *model.decoder();
}

std::vector<Generated> generate(models::LanguageModel& model, const std::vector<Prompt>& prompts,
                                const GenerateOptions& options, at::Device device,
                                at::ScalarType dtype) {
  if (prompts.empty()) return {};
  check(model, prompts, options);
  Batch batch{prompts, {}};
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    warn_of(prompts[p], name_of(p, prompts.size()), model, model.decoder()->spec(),
            options.max_new_tokens);
    batch.streams.push_back(p);
  }
  return run(model, batch, options, {.images_of_whole_text = options.images_of_whole_text}, device,
             dtype);
}

std::vector<Generated> generate_each(models::LanguageModel& model,
                                     const std::vector<Prompt>& prompts,
                                     const std::vector<std::uint64_t>& streams,
                                     const GenerateOptions& options, at::Device device,
                                     at::ScalarType dtype, Lockstep* lockstep) {
  if (prompts.empty()) return {};
  require(streams.size() == prompts.size(), "there are ", prompts.size(), " prompts but ",
          streams.size(), " streams of draws");
  check(model, prompts, options);
  return run(model, {prompts, streams, Company::each_alone}, options,
             {options.images_of_whole_text, Company::each_alone,
              std::min(options.max_new_tokens, kMostRoom), lockstep},
             device, dtype);
}

}  // namespace floe::generation
