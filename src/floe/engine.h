// The engine as one header: everything that floe::engine promises. docs/library.md is its tutorial.
//
// Including less compiles faster: each of these stands alone.
#pragma once

#include "floe/checkpoint/checkpoints.h"
#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/nn/call.h"
#include "floe/nn/layers.h"
#include "floe/nn/module.h"
#include "floe/optim/ema.h"
#include "floe/optim/lr_schedule.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/lion.h"
#include "floe/optim/optimizers/sgd.h"
#include "floe/shard/engine.h"
#include "floe/version.h"
