#include "floe/requests/work.h"

#include <algorithm>
#include <optional>

#include "floe/generation/score.h"

namespace floe::requests {
namespace {

std::int64_t length_of(const Request& request) { return std::ssize(request.prompt.ids); }

Record numbers(const std::vector<std::optional<double>>& values) {
  Record list = Record::array();
  for (const auto& value : values)
    if (value)
      list.push_back(*value);
    else
      list.push_back(nullptr);
  return list;
}

Record place(const std::optional<std::size_t>& best) { return best ? Record(*best) : Record(); }

// `scored`: of the candidates that have tokens, in order.
Record score_record(Request& request, const std::vector<generation::CandidateScore>& scored) {
  std::vector<std::optional<double>> sums, means;
  std::vector<std::size_t> tokens, empty;
  auto next = scored.begin();
  for (std::size_t c = 0; c < request.candidates.size(); ++c) {
    tokens.push_back(request.candidates[c].size());
    sums.emplace_back();
    means.emplace_back();
    if (request.candidates[c].empty()) {
      empty.push_back(c);
      continue;
    }
    sums.back() = next->log_prob;
    means.back() = next->per_token();
    ++next;
  }
  if (!empty.empty())
    request.problem = {
        "candidate",
        str(request.where, empty.size() == 1 ? "candidate " : "candidates ", join(empty, ", "),
            empty.size() == 1 ? " has" : " have", " no tokens and no score")};
  Record record;
  record["log_probs"] = numbers(sums);
  record["log_probs_per_token"] = numbers(means);
  record["tokens"] = tokens;
  record["best"] = place(generation::best_of(sums));
  record["best_per_token"] = place(generation::best_of(means));
  return record;
}

}  // namespace

Work generate_work(const ReadyModel& model, const generation::GenerateOptions& options) {
  Work work;
  work.name = "generate";
  work.lockstep = model.lockstep;
  work.size = [options](const Request& request) -> generation::RequestSize {
    return {.sequences = options.num_beams > 1 ? options.num_beams : options.num_return_sequences,
            .length = length_of(request) + options.max_new_tokens,
            .images = request.num_pictures()};
  };
  work.compute = [model, options](std::vector<Request>& requests) {
    std::vector<generation::Prompt> prompts;
    std::vector<std::uint64_t> streams;
    for (const Request& request : requests) {
      prompts.push_back(request.prompt);
      streams.push_back(static_cast<std::uint64_t>(request.number));
    }
    std::vector<Record> records(requests.size());
    const token::Tokenizer* tokenizer = model.built.tokenizer.get();
    for (const generation::Generated& text :
         generation::generate_each(*model.built.model, prompts, streams, options, model.device,
                                   model.dtype, model.lockstep)) {
      Record& record = records[text.prompt];
      record["ids"].push_back(text.ids);
      if (tokenizer)
        record["text"].push_back(
            tokenizer->decode(std::vector<std::int32_t>(text.ids.begin(), text.ids.end()),
                              /*skip_special=*/true));
      if (text.score) record["scores"].push_back(*text.score);
    }
    return records;
  };
  return work;
}

Work score_work(const ReadyModel& model, std::int64_t batch_tokens) {
  Work work;
  work.name = "score";
  work.lockstep = model.lockstep;
  work.size = [](const Request& request) -> generation::RequestSize {
    std::int64_t longest = 0;
    for (const auto& ids : request.candidates) longest = std::max(longest, std::ssize(ids));
    return {.sequences = std::ssize(request.candidates),
            .length = length_of(request) + longest,
            .images = request.num_pictures()};
  };
  work.compute = [model, batch_tokens](std::vector<Request>& requests) {
    std::vector<generation::ScoreRequest> asked;
    std::vector<std::size_t> places;  // of each request in `asked`
    for (const Request& request : requests) {
      generation::ScoreRequest one{request.prompt, {}};
      for (const auto& ids : request.candidates)
        if (!ids.empty()) one.candidates.push_back(ids);
      places.push_back(asked.size());
      if (!one.candidates.empty()) asked.push_back(std::move(one));
    }
    const auto scores = generation::score(*model.built.model, asked, batch_tokens, model.device,
                                          model.dtype, model.lockstep);
    std::vector<Record> records;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      const bool any = std::any_of(requests[r].candidates.begin(), requests[r].candidates.end(),
                                   [](const auto& ids) { return !ids.empty(); });
      records.push_back(score_record(
          requests[r], any ? scores[places[r]] : std::vector<generation::CandidateScore>()));
    }
    return records;
  };
  return work;
}

}  // namespace floe::requests
