// floe completion: what shells need to complete the words of a floe command line, from the tables
// that help pages are made of.
//
// Note [What shells complete]
// The scripts below ask one function, _floe_table, which is written out from the commands:
//   _floe_table commands           NAME|SUMMARY          a line per command
//   _floe_table options COMMAND    NAME|KIND|HELP        a line per option
//   _floe_table words COMMAND      KIND                  of its words
//   _floe_table keys COMMAND       KEY|KIND              a line per key of its configuration
// KIND says what may stand there: none (an option without a value), path, command, any (nothing can
// be offered), or words to choose from, as =fp32,bf16.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include "floe/cli/command.h"
#include "floe/cli/options.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBash = R"sh(
# What readline has split at = and : belongs together. Sets words.
_floe_join_words() {
  local i glue=
  words=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} =~ ^[=:]+$ ]]; then
      words[${#words[@]}-1]+=${COMP_WORDS[i]}
      glue=1
    elif [[ -n $glue ]]; then
      words[${#words[@]}-1]+=${COMP_WORDS[i]}
      glue=
    else
      words+=("${COMP_WORDS[i]}")
    fi
  done
}

_floe_kind() { # _floe_kind COMMAND OPTION
  local line
  while IFS= read -r line; do
    if [[ $line == "$2|"* ]]; then
      line=${line#*|}
      printf '%s' "${line%%|*}"
      return
    fi
  done < <(_floe_table options "$1")
}

# _floe_offer PREFIX KIND CURRENT: offers nothing for paths, which the shell itself completes.
_floe_offer() {
  local list=()
  case $2 in
    command) mapfile -t list < <(_floe_table commands | cut -d'|' -f1) ;;
    =*) IFS=, read -ra list <<<"${2#=}" ;;
  esac
  local word
  for word in "${list[@]}"; do
    [[ $word != "$3"* ]] || COMPREPLY+=("$1$word")
  done
}

# The keys of a configuration, level by level.
_floe_offer_keys() { # _floe_offer_keys COMMAND CURRENT
  local change='' current=$2 key kind level rest offered=' '
  if [[ $current == ++* || $current == '~'* ]]; then
    change=${current%%[!+~]*}
    current=${current#"$change"}
  fi
  if [[ $current == *=* ]]; then
    while IFS='|' read -r key kind; do
      [[ $key != "${current%%=*}" ]] || _floe_offer "$change$key=" "$kind" "${current#*=}"
    done < <(_floe_table keys "$1")
    return
  fi
  level=
  [[ $current != *.* ]] || level=${current%.*}.
  while IFS='|' read -r key kind; do
    [[ $key == "$current"* ]] || continue
    rest=${key#"$level"}
    if [[ $rest == *.* ]]; then
      key=$level${rest%%.*}.
    elif [[ $change != '~' ]]; then
      key+='='
    fi
    [[ $offered == *" $key "* ]] || COMPREPLY+=("$change$key")
    offered+="$key "
  done < <(_floe_table keys "$1")
  if ((${#COMPREPLY[@]})) && [[ $change != '~' || ${COMPREPLY[*]} == *. ]]; then compopt -o nospace 2>/dev/null; fi
}

_floe() {
  local words command='' word kind i current last
  COMPREPLY=()
  _floe_join_words
  last=$((${#words[@]} - 1))
  current=${words[last]}

  # Which command is it? Behind launch stands another one.
  for ((i = 1; i < last; i++)); do
    word=${words[i]}
    if [[ -z $command ]]; then
      command=$word
    elif [[ $word == --exec && $command == launch ]]; then
      return
    elif [[ $word == -- && $command == launch ]]; then
      command=
    elif [[ $word == -* ]]; then
      kind=$(_floe_kind "$command" "$word")
      [[ -z $kind || $kind == none ]] || ((i++))
    elif [[ $command == launch ]]; then
      command=$word
    fi
  done

  if [[ -z $command ]]; then
    _floe_offer '' command "$current"
  elif ((i > last)); then # a value of the option before
    _floe_offer '' "$kind" "$current"
  elif [[ $current == -*=* ]]; then
    _floe_offer "${current%%=*}=" "$(_floe_kind "$command" "${current%%=*}")" "${current#*=}"
  elif [[ $current == -* ]]; then
    while IFS='|' read -r word kind; do
      [[ $word != "$current"* ]] || COMPREPLY+=("$word")
    done < <(_floe_table options "$command")
  else
    _floe_offer '' "$(_floe_table words "$command")" "$current"
    _floe_offer_keys "$command" "$current"
    # Keys among files, for which the shell alone would offer only files.
    if ((${#COMPREPLY[@]})) && [[ $(_floe_table words "$command") == path && $current != *=* ]]; then
      while IFS= read -r word; do
        if [[ -d $word ]]; then word+=/; fi
        COMPREPLY+=("$word")
      done < <(compgen -f -- "$current")
    fi
  fi

  # Readline replaces only what stands behind the last = or : that it splits at.
  local kept=$current
  while [[ -n $kept && ($kept != *[=:] || $COMP_WORDBREAKS != *"${kept: -1}"*) ]]; do kept=${kept%?}; done
  for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$kept"}; done
}
complete -o default -F _floe floe
)sh";

constexpr std::string_view kZsh = R"sh(
_floe_lines() { # _floe_lines WHAT COMMAND: sets lines
  lines=("${(@f)$(_floe_table "$@")}")
  [[ $lines[1] != '' ]] || lines=()
}

_floe_kind() { # _floe_kind COMMAND OPTION: sets kind
  local lines line
  kind=
  _floe_lines options $1
  for line in $lines; do
    [[ $line != "$2|"* ]] || kind=${${line#*\|}%%\|*}
  done
}

_floe_commands() {
  local lines line list=()
  _floe_lines commands
  for line in $lines; do list+=("${line%%\|*}:${${line#*\|}//:/\\:}"); done
  _describe -t commands 'command' list
}

_floe_offer() { # _floe_offer KIND
  case $1 in
    command) _floe_commands ;;
    path) _files ;;
    '='*) compadd -- ${(s:,:)${1#=}} ;;
    *) _message 'a value' ;;
  esac
}

# The keys of a configuration, level by level.
_floe_offer_keys() { # _floe_offer_keys COMMAND
  local lines line key level rest inner=() leaves=() removes=
  _floe_lines keys $1
  (( $#lines )) || return 1
  if compset -P '(++|\~)'; then [[ $IPREFIX != *'~' ]] || removes=1; fi
  if compset -P '*='; then
    for line in $lines; do
      if [[ ${line%%\|*} == ${${IPREFIX%=}##*[+~]} ]]; then _floe_offer ${line#*\|}; fi
    done
    return
  fi
  level=
  [[ $PREFIX != *.* ]] || level=${PREFIX%.*}.
  for line in $lines; do
    key=${line%%\|*}
    [[ $key == $level* ]] || continue
    rest=${key#$level}
    if [[ $rest == *.* ]]; then inner+=($level${rest%%.*}.); else leaves+=($key); fi
  done
  (( $#inner )) && compadd -S '' -- ${(u)inner}
  if (( $#leaves )); then
    if [[ -n $removes ]]; then compadd -- $leaves; else compadd -S = -- $leaves; fi
  fi
}

_floe() {
  local command= kind= word lines line list=()
  local -i i
  for ((i = 2; i < CURRENT; i++)); do
    word=$words[i]
    if [[ -z $command ]]; then
      command=$word
    elif [[ $word == --exec && $command == launch ]]; then
      _default
      return
    elif [[ $word == -- && $command == launch ]]; then
      command=
    elif [[ $word == -* ]]; then
      _floe_kind $command $word
      [[ -z $kind || $kind == none ]] || ((i++))
    elif [[ $command == launch ]]; then
      command=$word
    fi
  done

  if [[ -z $command ]]; then
    _floe_commands
  elif ((i > CURRENT)); then # a value of the option before
    _floe_offer $kind
  elif [[ $PREFIX == -*=* ]]; then
    _floe_kind $command ${PREFIX%%=*}
    compset -P '*='
    _floe_offer $kind
  elif [[ $PREFIX == -* ]]; then
    _floe_lines options $command
    for line in $lines; do list+=("${line%%\|*}:${${line##*\|}//:/\\:}"); done
    _describe -o 'option' list
  else
    kind=$(_floe_table words $command)
    if [[ $kind == path ]]; then _files; elif [[ -n $kind ]]; then _floe_offer $kind; fi
    _floe_offer_keys $command
  fi
}
if [[ $funcstack[1] == _floe ]]; then _floe "$@"; else compdef _floe floe; fi
)sh";

// See Note [What shells complete].
std::string kind_of_value(std::string_view placeholder) {
  if (placeholder.empty()) return "none";
  if (placeholder == "COMMAND") return "command";
  for (const std::string_view path : {"FILE", "FOLDER", "DIR", "PATH", "PATTERN"})
    if (placeholder.starts_with(path)) return "path";
  if (std::none_of(placeholder.begin(), placeholder.end(), [](char c) { return std::islower(c); }))
    return "any";
  std::string words(placeholder);
  std::replace(words.begin(), words.end(), '|', ',');
  return "=" + words;
}

std::string quoted_for_shell(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string branch(const std::string& when, const std::vector<std::string>& lines) {
  std::string out = str("    ", quoted_for_shell(when), ")\n      printf '%s\\n'");
  for (const std::string& line : lines) out += " \\\n        " + quoted_for_shell(line);
  return out + "\n      ;;\n";
}

// The names that strategy=NAME and experiment=NAME find among floe's own configurations.
std::vector<std::string> configurations(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(own_configs()) / folder, ignored))
    if (entry.path().extension() == ".yaml") names.insert(entry.path().stem().string());
  return {names.begin(), names.end()};
}

// Keys that a word of the command line can set: not those inside of lists and of blocks whose names
// are the user's.
std::vector<std::string> key_lines(const std::vector<KeySection>& sections) {
  std::map<std::string, std::string> kinds;
  for (const KeySection& section : sections) {
    for (const auto& [key, field] : config::all_keys(section.fields)) {
      if (key.find("[]") != std::string::npos || key.find(".NAME") != std::string::npos) continue;
      if (!field->children.empty() && field->default_text.empty()) continue;  // its keys follow
      const bool text = field->type.find("string") != std::string::npos;
      kinds[key] = !field->choices.empty() ? "=" + join(field->choices, ",")
                   : text                  ? "path"
                                           : "any";
    }
  }
  for (const std::string folder : {"strategy", "experiment"})
    if (const auto names = configurations(folder); !names.empty())
      kinds[folder] = "=" + join(names, ",");
  std::vector<std::string> lines;
  for (const auto& [key, kind] : kinds) lines.push_back(str(key, "|", kind));
  return lines;
}

std::string table() {
  std::string out = "_floe_table() {\n  case $* in\n";
  std::vector<std::string> names;
  for (const Command* command : commands())
    names.push_back(str(command->name, "|", command->summary));
  out += branch("commands", names);
  // Commands whose keys are the same share their lines.
  std::map<std::vector<std::string>, std::vector<std::string>> commands_by_keys;
  for (const Command* command : commands()) {
    const std::string name(command->name);
    std::vector<std::string> options;
    for (const OptionRow& row : command->options)
      if (row.name.starts_with("-") && !row.help.empty())
        options.push_back(str(row.name, "|", kind_of_value(row.value), "|", row.help));
    options.emplace_back("--help|none|what the command does");
    out += branch("options " + name, options);
    if (!command->words.empty()) out += branch("words " + name, {kind_of_value(command->words)});
    if (command->keys) commands_by_keys[key_lines(command->keys())].push_back(name);
  }
  for (const auto& [lines, with_them] : commands_by_keys) {
    std::string when;
    for (const std::string& name : with_them)
      when += str(when.empty() ? "" : " | ", quoted_for_shell("keys " + name));
    std::string written = branch("", lines);
    out += str("    ", when, written.substr(written.find(')')));
  }
  return out + "  esac\n}\n";
}

Exit run_completion(const Args& args) {
  const Options options(kCompletionCommand, args);
  const std::string shell = options.words().size() == 1 ? options.words().front() : "";
  require<ConfigError>(shell == "bash" || shell == "zsh",
                       "completion: say for which shell: floe completion bash, or zsh; got '",
                       join(options.words(), " "), "'");
  if (shell == "zsh") std::cout << "#compdef floe\n";
  std::cout << "# Completion of floe "
            << "for " << shell << ", written by 'floe completion " << shell << "'.\n\n"
            << table() << (shell == "bash" ? kBash : kZsh);
  return Exit::done;
}

}  // namespace

const Command kCompletionCommand{
    .name = "completion",
    .summary = "completion of commands, options and keys for bash or zsh",
    .about = R"sh(usage: floe completion bash|zsh

Prints a script that teaches the shell the words of floe: commands, options and their values, keys of
configurations and their choices. It is of this version of floe; make it anew with the next.

bash, now or for every new shell:
  eval "$(floe completion bash)"
  floe completion bash > ~/.local/share/bash-completion/completions/floe

zsh, now or for every new shell (the folder must be in fpath before compinit runs):
  eval "$(floe completion zsh)"
  floe completion zsh > ~/.zfunc/_floe
)sh",
    .words = "bash|zsh",
    .run = run_completion,
};

}  // namespace floe::cli
