// floe score: log-probabilities of candidates.
#include "floe/cli/requests_job.h"

namespace floe::cli {
namespace {

Exit run_score(const Args& args) {
  const Options options(kScoreCommand, args);
  const Words words = split_words(options.words());
  const auto shards = shards_of("score", options, /*with_candidates=*/true);
  for (const char* name : {"--prompt", "--candidate"})
    require<ConfigError>(shards || !options.has(name), "score: ", name,
                         " has no use without --shards");
  require<ConfigError>(
      words.paths.size() == (shards ? 1 : 2),
      "score: expected a model (a run folder, a checkpoint, an exported folder or a YAML) and a "
      "file of requests (or --shards), got ",
      counted(std::ssize(words.paths), "path"), "; 'floe score --help' tells more");
  const RequestsJob job{
      .command = kScoreCommand,
      .model = words.paths[0],
      .file = shards ? "" : words.paths[1],
      .shards = shards,
      .changes = words.changes,
      .needs = [](const LoadedModel&) { return requests::RequestNeeds{.candidates = true}; },
      .work =
          [](const LoadedModel& loaded, const requests::RunRequests& how) {
            return requests::score_work(loaded.ready(), how.batch_tokens);
          },
  };
  return run_requests_job(job, options);
}

std::vector<OptionRow> score_options() {
  std::vector<OptionRow> rows = shards_options(/*with_candidates=*/true);
  rows.push_back({"--prompt", "TEXT", "with --shards: what is in front of the candidates"});
  const std::vector<OptionRow> of_requests = requests_options();
  rows.insert(rows.end(), of_requests.begin(), of_requests.end());
  rows.push_back(dtype_option());
  rows.push_back(device_option());
  return rows;
}

}  // namespace

const Command kScoreCommand{
    .name = "score",
    .summary = "how likely given texts are after a prompt, for many at once",
    .about = R"(usage: floe score MODEL REQUESTS.jsonl [key=value] [options]
       floe score MODEL --shards LIST --prompt TEXT --candidate TEXT [key=value] [options]

Log-probabilities of candidates after a prompt with or without images, a request on each line:

  {"prompt": "<image>Is this a cat? Answer:", "images": ["cat.jpg"], "candidates": [" yes", " no"]}

A prompt is computed once for all of its candidates. The result of a request has, for each candidate,
log_probs (the sum over its tokens, natural logarithm), log_probs_per_token and tokens, and which one
is best and best_per_token. A request that cannot be scored has 'error', and the run goes on.
)",
    .options = score_options(),
    .closing = R"(  floe score runs/demo requests.jsonl --output scores.jsonl
  floe launch -n 2 -- score runs/demo requests.jsonl --output scores.jsonl
  floe score runs/demo --shards data --prompt '<image>Output:' --candidate '{txt}' --output scores.jsonl

Paths of images are looked for beside the file of requests, else in the working directory. 'ids' may
stand for 'prompt', lists of ids for candidates; 'id', any value, comes back with the result. Over
several ranks each does its share, with the whole model or, with --sharded, its slices of it. MODEL and
key=value are as for floe generate.
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_score,
};

}  // namespace floe::cli
