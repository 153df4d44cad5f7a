// What an entry of a policy names: "DecoderLayer" a class, "layers.*" names by pattern.
#pragma once

#include <torch/nn/module.h>

#include <string>

namespace floe::shard {

// Whether the entry is a pattern over dotted names: it has one of . * ? [.
bool is_pattern(const std::string& entry);

// Whether the entry names the module of that dotted name.
bool names_module(const std::string& entry, const std::string& name,
                  const torch::nn::Module& module);

}  // namespace floe::shard
