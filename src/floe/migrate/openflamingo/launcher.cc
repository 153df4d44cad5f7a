#include "floe/migrate/openflamingo/launcher.h"

#include <algorithm>
#include <charconv>

#include "floe/core/error.h"

namespace floe::migrate {
namespace {

using Words = std::vector<std::string>;

std::string_view base_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_python(std::string_view word) { return base_name(word).starts_with("python"); }

bool is_assignment(const std::string& word) {
  const auto equals = word.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

// Where train.py's flags begin, and how many words name it: "path/train.py", "-m a.b.train".
struct Script {
  std::size_t at = 0, length = 1;
};

Script find_script(const Words& command) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    const std::string_view name = base_name(word);
    if (i > 0 && command[i - 1] == "-m" && word.find("torch.distributed") == std::string::npos) {
      require<ConfigError>(word.ends_with("train"), "migrate: '-m ", word,
                           "' is not OpenFlamingo's train.py; name a command that runs it");
      return {i - 1, 2};
    }
    if (!name.ends_with(".py") || word.starts_with("-")) continue;
    require<ConfigError>(name.find("train") != std::string_view::npos, "migrate: '", word,
                         "' is not OpenFlamingo's train.py; name a command that runs it");
    return {i, 1};
  }
  // Only flags: as in train.py's place.
  if (!command.empty() && command[0].starts_with("--")) return {0, 0};
  const bool in_quotes = std::any_of(command.begin(), command.end(), [](const std::string& word) {
    return word.find("train.py ") != std::string::npos;
  });
  throw ConfigError(str("migrate: there is no train.py in the command '", join(command, " "), "'; ",
                        in_quotes ? "take the quotes around it away: floe migrate -- torchrun ... "
                                    "train.py --lm_path ..."
                                  : "write it behind '--': floe migrate -- torchrun ... train.py "
                                    "--lm_path ..."));
}

// What floe has to say to a variable.
enum class Variable { kept, secret, of_python, of_wandb };

Variable kind_of_variable(const std::string& name) {
  for (const char* part : {"KEY", "TOKEN", "SECRET", "PASSWORD"})
    if (name.find(part) != std::string::npos) return Variable::secret;
  for (const char* begin : {"PYTHON", "TRANSFORMERS_", "HF_", "TOKENIZERS_"})
    if (name.starts_with(begin)) return Variable::of_python;
  for (const char* wandb : {"WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY"})
    if (name == wandb) return Variable::of_wandb;
  return Variable::kept;
}

// Takes `env`, `NAME=VALUE` from the front.
void take_variables(Words& words, Launch& launch, Page& page) {
  while (!words.empty() &&
         (is_assignment(words[0]) || base_name(words[0]) == "env" || words[0] == "export")) {
    const std::string word = words.front();
    words.erase(words.begin());
    if (!is_assignment(word)) {
      require<ConfigError>(words.empty() || !words[0].starts_with("-"), "migrate: '", word, " ",
                           words.empty() ? "" : words[0],
                           "' is not understood; write the variables alone, NAME=VALUE");
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    switch (kind_of_variable(name)) {
      case Variable::secret:
        page.add_note(str(name, " is a secret and not repeated here: set it before."));
        break;
      case Variable::of_python:
        page.leave_out(str(name, "=", shell_word(value), ": there is no Python in a run of floe."));
        break;
      case Variable::of_wandb:
      case Variable::kept: launch.environment.emplace_back(name, value);
    }
  }
}

int rank_count(const std::string& option, const std::string& text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, number);
  require<ConfigError>(error == std::errc() && last == end && number >= 1 && number <= 1'000'000,
                       "migrate: ", option, " is '", text, "', but must be a number of at least 1");
  return number;
}

// The value of the last of these options in a launcher's words, as --name=V, --name V, -nV or -n V;
// underscores count as dashes.
std::optional<std::string> option_value(const Words& words, const Words& names) {
  std::optional<std::string> value;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    std::string name = words[i].substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    for (const std::string& wanted : names) {
      const bool is_short = wanted.size() == 2;
      if (name == wanted && equals != std::string::npos)
        value = words[i].substr(equals + 1);
      else if (name == wanted && i + 1 < words.size())
        value = words[i + 1];
      else if (is_short && words[i].size() > 2 && words[i].starts_with(wanted) &&
               std::isdigit(static_cast<unsigned char>(words[i][2])))
        value = words[i].substr(2);
    }
  }
  return value;
}

std::optional<int> option_number(const Words& words, const Words& names) {
  const auto text = option_value(words, names);
  return text ? std::optional(rank_count(names.front(), *text)) : std::nullopt;
}

std::string typed(const Words& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + shell_word(word);
  return out;
}

Words floe_launch(int ranks) {
  if (ranks == 1) return {"floe", "train"};
  return {"floe", "launch", "-n", std::to_string(ranks), "--", "train"};
}

// torchrun and python -m torch.distributed.run; `own` are its words without its name.
void read_torchrun(const Words& outer, const Words& own, Launch& launch, Page& page) {
  const auto nodes_text = option_value(own, {"--nnodes"}).value_or("1");
  const auto ranks_text = option_value(own, {"--nproc-per-node"}).value_or("1");
  const bool elastic = nodes_text.find(':') != std::string::npos;
  // Words for what a machine has, or a variable that the shell has yet to fill in.
  const bool counted = ranks_text != "gpu" && ranks_text != "cpu" && ranks_text != "xpu" &&
                       ranks_text != "auto" && !ranks_text.starts_with("$");
  const int nodes = elastic ? 0 : rank_count("--nnodes", nodes_text);
  if (counted) launch.per_machine = rank_count("--nproc_per_node", ranks_text);
  if (counted && !elastic) launch.world = nodes * *launch.per_machine;
  const bool restarts = option_value(own, {"--max-restarts"}).value_or("0") != "0";
  if (nodes == 1 && counted && !restarts && outer.empty()) {
    launch.words = floe_launch(*launch.per_machine);
    launch.own_launcher = true;
    page.add_note(str("torchrun ", typed(own),
                      ": floe launch starts the ranks of one machine; "
                      "torchrun --no-python floe train does so as well."));
    return;
  }
  launch.words = outer;
  launch.words.emplace_back("torchrun");
  for (const std::string& word : own)
    if (word != "--use_env" && word != "--use-env") launch.words.push_back(word);
  for (const char* word : {"--no-python", "floe", "train"}) launch.words.emplace_back(word);
  page.add_note(
      "torchrun starts floe as it started train.py; --no-python says that it is a program "
      "of its own.");
}

// The words in front of a launcher or Python that start something of their own (nohup, singularity
// exec, numactl) stay.
void read_words(Words words, Launch& launch, Page& page) {
  // What Python would have run is floe's part: -m torch.distributed.run and torchrun first.
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool by_name = base_name(words[i]) == "torchrun";
    const bool by_module =
        i > 0 && words[i - 1] == "-m" &&
        (words[i] == "torch.distributed.run" || words[i] == "torch.distributed.launch");
    if (!by_name && !by_module) continue;
    std::size_t begin = i;
    while (by_module && begin > 0 && !is_python(words[begin])) --begin;
    Words own(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
    std::erase_if(own, is_python);
    std::erase(own, "-m");
    words.resize(begin);
    return read_torchrun(words, own, launch, page);
  }
  // Python itself and its switches end the launcher's words.
  const auto python = std::find_if(words.begin(), words.end(), is_python);
  if (python != words.end()) {
    for (auto word = python + 1; word != words.end(); ++word)
      page.leave_out(str("python's ", shell_word(*word), ": floe is a program of its own."));
    words.erase(python, words.end());
  }
  const auto named = [&](std::initializer_list<std::string_view> names) {
    return std::find_if(words.begin(), words.end(), [&](const std::string& word) {
      return std::find(names.begin(), names.end(), base_name(word)) != names.end();
    });
  };
  if (named({"srun"}) != words.end()) {
    const auto nodes = option_number(words, {"--nodes", "-N"});
    launch.per_machine = option_number(words, {"--ntasks-per-node"});
    launch.world = option_number(words, {"--ntasks", "-n"});
    if (!launch.world && nodes && launch.per_machine) launch.world = *nodes * *launch.per_machine;
    if (!launch.per_machine && launch.world && nodes && *launch.world % *nodes == 0)
      launch.per_machine = *launch.world / *nodes;
    page.add_note("srun starts the ranks as before: floe reads SLURM's variables.");
  } else if (named({"mpirun", "mpiexec", "mpiexec.hydra", "orterun"}) != words.end()) {
    launch.world = option_number(words, {"--np", "-np", "-n", "-c"});
    launch.per_machine = option_number(words, {"--npernode", "-npernode", "-ppn"});
    page.add_note("mpirun starts the ranks as before: floe reads OpenMPI's variables.");
  } else if (const auto other = named({"horovodrun", "deepspeed", "accelerate"});
             other != words.end()) {
    const Words own(other + 1, words.end());
    launch.world = option_number(own, {"--num-processes", "-np", "--num-proc", "--num-gpus"});
    require<ConfigError>(launch.world.has_value(), "migrate: ", base_name(*other),
                         " does not say how many ranks it starts; say so with -np, --num_gpus or "
                         "--num_processes");
    page.leave_out(str(base_name(*other), " ", typed(own),
                       ": floe launch starts the ranks of one machine; on several use torchrun "
                       "--no-python floe train, srun or mpirun."));
    words.erase(other, words.end());
    launch.own_launcher = true;
  } else {
    launch.world = launch.per_machine = 1;
    launch.own_launcher = true;
  }
  if (launch.own_launcher) {
    launch.per_machine = launch.world;
    const Words own = floe_launch(*launch.world);
    words.insert(words.end(), own.begin(), own.end());
  } else {
    words.insert(words.end(), {"floe", "train"});
  }
  launch.words = std::move(words);
}

}  // namespace

std::string Launch::command() const {
  std::string out;
  for (const auto& [name, value] : environment) out += str(name, "=", shell_word(value), " ");
  return out + typed(words) + " ";
}

Launch read_launch(const Words& command, Page& page) {
  const Script script = find_script(command);
  Launch launch;
  const auto split = command.begin() + static_cast<std::ptrdiff_t>(script.at);
  launch.flags.assign(split + static_cast<std::ptrdiff_t>(script.length), command.end());
  Words before(command.begin(), split);
  take_variables(before, launch, page);
  if (!before.empty() && script.length > 0) {
    const std::string_view last = base_name(before.back());
    require<ConfigError>(last != "sbatch" && last != "bash" && last != "sh", "migrate: '", last,
                         "' starts a script; name the command inside of it that runs train.py");
  }
  read_words(std::move(before), launch, page);
  return launch;
}

}  // namespace floe::migrate
