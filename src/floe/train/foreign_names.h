// How a model's parameters are called in the checkpoints of OpenFlamingo, and which ones it keeps.
#pragma once

#include "floe/checkpoint/checkpointer.h"
#include "floe/models/language_model.h"

namespace floe::train {

// The model must live as long.
checkpoint::ForeignNames foreign_names(models::LanguageModel& model);

}  // namespace floe::train
