// The base of floe's own modules: torch::nn::Module with a boundary and with parameters that know
// their initial values but have no memory yet.
//
//   struct Mlp : nn::Module {
//     explicit Mlp(int64_t dim) {
//       up = child<nn::Linear>("up", dim, 4 * dim);
//       down = child<nn::Linear>("down", 4 * dim, dim);
//     }
//     at::Tensor forward(at::Tensor x) { return down(at::gelu(up(x))); }
//     nn::Ptr<nn::Linear> up, down;
//   };
//
// Note [Deferred parameters]
// `parameter` registers a CPU tensor with its shape and dtype but a storage of zero bytes:
// building a model of any size takes no memory. Memory comes from `fully_shard` (shards only)
// or from `materialize` (everything, for one process). Reading a deferred parameter before that
// is an error.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "floe/nn/call.h"
#include "floe/nn/init.h"

namespace floe::nn {

class Module : public torch::nn::Module, public BoundarySlot {
 public:
  // How the parameters registered here begin, by their local names.
  const std::map<std::string, Init>& inits() const { return inits_; }
  // Whether the backward of this module reads its own parameters (an embedding's does not). Plans
  // use it; the engine looks at what autograd really saved.
  virtual bool weights_in_backward() const { return true; }
  // Whether the parameter of this local name is read by nn::linear and its like alone, so that it
  // may be a weight of codes (see Note [Weights that are codes]).
  virtual bool multiplies(const std::string& /*parameter*/) const { return false; }
  // Whether modules of this class are units of their own where strategy.units is not set. Those
  // that its default names need not say so.
  virtual bool is_unit_by_default() const { return false; }

 protected:
  at::Tensor parameter(const std::string& name, const std::vector<std::int64_t>& shape, Init init);

  // Replaces a registered parameter by one that another module registered too.
  at::Tensor tie(const std::string& name, const at::Tensor& other);

  template <class M, class... Args>
  Ptr<M> child(const std::string& name, Args&&... args) {
    auto module = std::make_shared<M>(std::forward<Args>(args)...);
    register_module(name, module);
    return Ptr<M>(std::move(module));
  }

  // A module at a dotted path below this one. Plain modules on the way are made as they are needed.
  template <class M, class... Args>
  Ptr<M> child_at(const std::string& path, Args&&... args) {
    auto module = std::make_shared<M>(std::forward<Args>(args)...);
    register_at(path, module);
    return Ptr<M>(std::move(module));
  }

 private:
  void register_at(const std::string& path, const std::shared_ptr<torch::nn::Module>& module);

  std::map<std::string, Init> inits_;
  std::map<std::string, std::shared_ptr<Module>> folders_;  // made by child_at
};

// A tensor with a shape and no memory.
at::Tensor deferred(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat);
bool is_deferred(const at::Tensor& tensor);

// The class as a policy names it: "DecoderLayer" for floe::models::DecoderLayer, "Linear" for
// torch::nn::LinearImpl and for Hooked<torch::nn::LinearImpl>.
std::string class_name(const torch::nn::Module& module);

// One parameter of a model, whatever number of places it is registered in.
struct NamedParameter {
  std::string name;  // the first place, in registration order
  at::Tensor tensor;
  const Init* init = nullptr;              // null for foreign modules: they have values already
  std::vector<torch::nn::Module*> owners;  // of each place, the first place first
  std::vector<std::string> other_names;    // further places: tied, or a module under two parents
};

// All parameters, once each, in registration order.
std::vector<NamedParameter> named_parameters(torch::nn::Module& root);

// From now on exactly the parameters that a pattern matches require gradients. Throws ConfigError
// for a pattern that matches none.
void set_trainable(torch::nn::Module& root, const std::vector<std::string>& patterns);

// Gives every deferred parameter memory on the device and its initial values: the model
// in one piece.
void materialize(torch::nn::Module& root, std::uint64_t seed, at::Device device = at::kCPU);

}  // namespace floe::nn
