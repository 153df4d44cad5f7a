// The names of tensors in a tree of values.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "floe/io/pickle_value.h"

namespace floe {

// Calls `visit` for every tensor with its dotted name, in the order of the tree. Dict keys, places in
// lists and attributes of objects are the parts of a name; a tensor that is itself the root has the
// empty name.
//
// A value that is shared has several names, so a small pickle can stand for a huge tree. What is
// visited is therefore bounded by `pickle_bytes`, far above what saved training states need; beyond
// that a DataError names the file.
void for_each_torch_tensor(
    const pickle::Value& root, std::size_t pickle_bytes, const std::string& file,
    const std::function<void(const std::string& name, const pickle::Value& tensor)>& visit);

}  // namespace floe
