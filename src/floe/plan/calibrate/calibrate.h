// Measures the machine at hand and describes it as `floe plan --gpu FILE` takes it.
//
//   const Calibration found = calibrate(*world, {});
//   if (world->rank() == 0) write_file_atomically("here.yaml", to_yaml(found));
//
// Note [Calibration]
// Rank 0 measures what a device computes and copies while the others wait; then all ranks measure
// collectives, of a node and, where ranks lie on several, between nodes. Everything is timed in
// several rounds whose median counts, with operators and sizes as training steps have them. What is
// not measured is that of the machine it is like.
#pragma once

#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/plan/machine/machine.h"

namespace floe::plan {

struct CalibrateSettings {
  std::string like;  // a known machine; empty: the nearest
  std::string name;  // that it gets; empty: the device's
  int rounds = 5;
};

// One number of the description, and where it is from.
struct MeasuredField {
  std::string key, value;  // as in YAML
  std::string how;         // in words
};

struct Calibration {
  std::string name, like, device;
  std::string hardware;  // the device and the ranks, in words
  int rounds = 0;
  double seconds = 0;                 // that it took
  std::vector<MeasuredField> fields;  // in the order of the description
  std::vector<std::string> missing;   // keys that were not measured
};

// Collective: all ranks of the world call it; what rank 0 gets counts. Throws ConfigError for a
// machine that is not known.
Calibration calibrate(comm::World& world, const CalibrateSettings& settings);

// The file, with what was measured, when and how as comments.
std::string to_yaml(const Calibration& calibration);

}  // namespace floe::plan
