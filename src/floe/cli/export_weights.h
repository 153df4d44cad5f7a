// Tensors of a checkpoint as they are: no model is needed.
#pragma once

#include <string>

#include "floe/cli/export_request.h"

namespace floe::cli {

// --raw: every tensor under its flat name. `place`: the file, or the folder to be filled.
ExportResult export_raw(const ExportRequest& request, const std::string& place);

// The weights of a training state of any origin, without prefixes; into a folder with config.json and
// tokenizer of request.base, if there is one.
ExportResult export_weights(const ExportRequest& request, const std::string& place);

}  // namespace floe::cli
