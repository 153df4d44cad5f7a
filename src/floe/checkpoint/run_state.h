// What a checkpoint consists of, as data: named tensors of which each rank holds some elements.
//
// Note [Names in a checkpoint]
// As torch.distributed.checkpoint.state_dict.get_state_dict has them, so that PyTorch finds what it
// looks for: `model.NAME`, `optimizer.state.NAME.exp_avg`, `optimizer.param_groups.0.lr`; and
// `ema.NAME` for averages. NAME is the parameter's in the model. With several sets of parameters an
// optimizer is `optimizers.SET` (Note [Names of optimizers]); state that does not exist has no
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpoint_config.h"
#include "floe/checkpoint/sets.h"
#include "floe/core/dtype.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/optim/ema.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"
#include "floe/shard/plan/plan.h"

namespace floe::checkpoint {

// Elements of a table that a parameter of its own stands for (trained rows of an embedding).
//
// Note [Rows in tables]
// In memory the table's own values of these elements are never used. In a checkpoint the table has
// the values of `rows` there, rounded to the table's type: whoever holds a piece of `rows` writes
// it twice, as elements of both, and whoever holds the table leaves them out. So a reader that
// knows only tables finds what was trained, and floe finds `rows` itself. Of averages the same is
// true; what is frozen in the table is its own average, so `ema.TABLE` takes it from the bytes of
// `model.TABLE`.
struct TableRows {
  std::string table, rows;
  std::int64_t table_first = 0, rows_first = 0, count = 0;  // elements
};

struct RunState {
  shard::Engine* engine = nullptr;
  std::vector<SetOptimizer> optimizers;
  optim::Ema* ema = nullptr;  // null: none
  Content content = Content::trainable;
  std::set<std::string> kept;  // belong to the trainable content, whether they train or not
  std::vector<TableRows> rows;
};

// Elements [first, first + values.numel()) of a tensor, row-major; `values` is one-dimensional,
// contiguous, and the memory that training uses: on the device, or in the host store of a set that
// rests.
struct StatePiece {
  std::int64_t first = 0;
  at::Tensor values;
};

struct StateTensor {
  std::vector<std::string> path;         // {"optimizer", "state", "layers.0.weight", "exp_avg"}
  std::vector<std::string> other_names;  // of a tied parameter: whole flat names
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;
  std::vector<StatePiece> pieces;
  // Elements that no rank writes are those of this tensor; empty: there are none.
  std::string rest_of;

  std::string name() const;  // flat: joined with dots
};

// A value that is no tensor, equal on all ranks.
struct StateObject {
  std::string name;
  pickle::Value path, value;
};

// Which elements of its slices a rank is to write.
enum class Share {
  part,  // where several ranks hold the same slice, each one a part of it
  held,  // all that it holds, replica or not
};

// Whether its checkpoints have the parameter.
bool has(const RunState& state, const shard::PlannedParameter& parameter);

// Throws ConfigError for content that cannot be written: frozen matrices that are stored in 8 bits.
void check_savable(const RunState& state);

// Tensors of which this rank has nothing to write are left out.
std::vector<StateTensor> state_tensors(const RunState& state, Share share);
std::vector<StateObject> state_objects(const RunState& state);

// A digest of the names and shapes of all parameters.
std::string model_digest(const shard::ShardPlan& plan);

}  // namespace floe::checkpoint
