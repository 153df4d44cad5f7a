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

// `name`: of the prompt, for messages.
void check_length(const Prompt& prompt, const std::string& name, const models::DecoderSpec& spec,
                  std::int64_t max_new_tokens) {
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  if (spec.positions == models::Positions::learned) {
    // The last new token is never given to the model.
    const std::int64_t positions = spec.position_rows - spec.position_offset;
    require<ConfigError>(length <= positions, name, " has ", length,
                         " tokens, but the model has only ", positions, " positions; shorten it");
    require<ConfigError>(length + max_new_tokens - 1 <= positions, name, " has ", length,
                         " tokens and ", max_new_tokens, " may follow, but the model has only ",
                         positions, " positions; set max_new_tokens to at most ",
                         positions - length + 1, " or shorten it");
  } else if (spec.context > 0 && length + max_new_tokens > spec.context) {
    log::warn(name, " has ", length, " tokens and ", max_new_tokens,
              " may follow; the model was made for ", spec.context, " in all");
  }
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
  const auto markers = std::count(prompt.ids.begin(), prompt.ids.end(), model.media_token());
  require<ConfigError>(images > 0 || markers == 0, name, " has ", markers,
                       " <image> but no image; give as many");
  if (images > markers)
    log::warn(name, " has ", images, " images but only ", markers,
              " <image>; no text looks at the rest");
  if (images < markers)
    log::warn(name, " has ", markers, " <image> but only ", images,
              " images; text behind a surplus <image> looks at all images alike");
}

void check(const models::LanguageModel& model, const std::vector<Prompt>& prompts,
           const GenerateOptions& options) {
  options.validate();
  const models::DecoderSpec& spec = require_decoder(model).spec();
  const auto known = [&](std::int64_t token) { return token >= 0 && token < spec.vocab; };
  for (const std::int64_t token : options.eos)
    require<ConfigError>(known(token), "the end token ", token,
                         " lies outside of the model's vocabulary of ", spec.vocab);
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const std::string name = prompts.size() == 1 ? "the prompt" : str("prompt ", p + 1);
    const std::vector<std::int64_t>& ids = prompts[p].ids;
    require<ConfigError>(!ids.empty(), name, " is empty; give at least one token");
    const auto wrong = std::find_if_not(ids.begin(), ids.end(), known);
    require<ConfigError>(wrong == ids.end(), name, ": token ", wrong == ids.end() ? 0 : *wrong,
                         " lies outside of the model's vocabulary of ", spec.vocab);
    check_length(prompts[p], name, spec, options.max_new_tokens);
    check_images(prompts[p], name, model);
  }
}

std::vector<Generated> by_beams(GenerateSession& session, const std::vector<Prompt>& prompts,
                                const GenerateOptions& options) {
  const LogitsRules rules(options);
  BeamSearch beams(static_cast<std::int64_t>(prompts.size()), options);
  Texts texts;  // of each open beam, with its prompt
  for (const Prompt& prompt : prompts)
    texts.insert(texts.end(), static_cast<std::size_t>(options.num_beams), prompt.ids);
  if (options.on_step) options.on_step(0);
  // The prompts are read once, then every beam has its copy.
  at::Tensor logits = session.start().repeat_interleave(options.num_beams, 0);
  session.repeat(options.num_beams);
  for (std::int64_t num_new = 0;;) {
    at::Tensor scores = logits.log_softmax(-1);
    rules.apply(scores, texts, num_new++);
    const BeamSearch::Next next = beams.advance(scores);
    if (beams.done()) break;
    Texts continued;
    for (std::size_t s = 0; s < next.from.size(); ++s) {
      continued.push_back(texts[static_cast<std::size_t>(next.from[s])]);
      continued.back().push_back(next.tokens[s]);
    }
    texts = std::move(continued);
    if (options.on_step) options.on_step(num_new);
    session.reorder(next.from);
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
std::vector<Generated> one_by_one(GenerateSession& session, const std::vector<Prompt>& prompts,
                                  const GenerateOptions& options) {
  const LogitsRules rules(options);
  const Sampler sampler(options.seed);
  std::vector<Generated> generated;
  Texts texts;                       // of the sequences that are not at their end
  std::vector<std::size_t> results;  // where each of them is in `generated`
  for (std::size_t p = 0; p < prompts.size(); ++p)
    for (std::int64_t i = 0; i < options.num_return_sequences; ++i) {
      results.push_back(generated.size());
      generated.push_back({p, {}, std::nullopt});
      texts.push_back(prompts[p].ids);
    }
  if (options.on_step) options.on_step(0);
  at::Tensor logits = session.start().repeat_interleave(options.num_return_sequences, 0);
  session.repeat(options.num_return_sequences);
  for (std::int64_t num_new = 0;;) {
    rules.apply(logits, texts, num_new);
    const at::Tensor likeliest = logits.argmax(-1);
    const auto vocab = static_cast<std::size_t>(logits.size(1));
    Texts still;
    std::vector<std::size_t> still_results;
    std::vector<std::int64_t> tokens, kept;
    for (std::size_t s = 0; s < texts.size(); ++s) {
      const std::span<const float> row(logits.const_data_ptr<float>() + s * vocab, vocab);
      const std::int64_t token =
          options.sample ? sampler.draw(row, 1, results[s], static_cast<std::uint64_t>(num_new))[0]
                         : likeliest.const_data_ptr<std::int64_t>()[s];
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

}  // namespace

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
  GenerateSession session(model, prompts, device, dtype, options.images_of_whole_text);
  return options.num_beams > 1 ? by_beams(session, prompts, options)
                               : one_by_one(session, prompts, options);
}

}  // namespace floe::generation
