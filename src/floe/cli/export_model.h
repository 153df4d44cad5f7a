// A checkpoint as a whole model in the layouts that other systems load: what it has, and the rest from
// the files that its configuration names.
#pragma once

#include <string>

#include "floe/cli/checkpoint_model.h"
#include "floe/cli/export_request.h"

namespace floe::cli {

// `place`: the file, or the folder to be filled. A language model becomes a Hugging Face folder, its
// adapters merged, or a PEFT folder of the adapters alone; a Flamingo the whole state dict of
// OpenFlamingo, or what OpenFlamingo keeps of it (trainable_only).
ExportResult export_model(const ExportRequest& request, const CheckpointModel& model,
                          const std::string& place);

}  // namespace floe::cli
