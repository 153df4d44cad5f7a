// A model as a whole in the layouts that other systems load: what its checkpoint has, and
// the rest from the files that its configuration names.
#pragma once

#include <string>

#include "floe/cli/export_request.h"
#include "floe/cli/used_model.h"

namespace floe::cli {

// `place`: the file, or the folder to be filled. A language model becomes a Hugging Face folder, its
// adapters merged, or a PEFT folder of the adapters alone; a Flamingo the whole state dict of
// OpenFlamingo, or what OpenFlamingo keeps of it (trainable_only).
ExportResult export_model(const ExportRequest& request, const UsedModel& model,
                          const std::string& place);

}  // namespace floe::cli
