// How a model's parameters are called in the checkpoints of OpenFlamingo.
#pragma once

#include "floe/checkpoint/checkpointer.h"
#include "floe/models/language_model.h"
#include "floe/shard/plan.h"

namespace floe::train {

// Of what some set of the plan trains. The model must live as long.
checkpoint::ForeignNames foreign_names(models::LanguageModel& model, const shard::ShardPlan& plan);

}  // namespace floe::train
