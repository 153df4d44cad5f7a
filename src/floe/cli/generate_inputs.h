// The prompts of `floe generate`: ids or text, images from a file of tensors or from pictures.
#pragma once

#include <string>
#include <vector>

#include "floe/cli/loaded_model.h"
#include "floe/cli/options.h"
#include "floe/models/generate.h"

namespace floe::cli {

// "1,2,3" → ids; throws ConfigError that names the option.
std::vector<std::int64_t> parse_ids(const std::string& text, const std::string& option);

// Throws ConfigError for options of prompts that are missing or do not go together.
void require_prompts(const Options& options);

// By --ids and --images, or by --prompt and --image; --pad-id names what to leave out at the start of
// --ids. Throws ConfigError for what does not go together and DataError for files.
std::vector<models::Prompt> read_prompts(const Options& options, const LoadedModel& loaded);

}  // namespace floe::cli
