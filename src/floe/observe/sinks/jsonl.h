// The lines of RUN/metrics.jsonl, one per optimizer step.
//
//   {"step":1,"time":1731664800.25,"loss_laion":2.5,"lr":0.0001}
//
// Every line is valid JSON, so a value that is not finite is null there (None in Python, NaN in
// pandas); what it was is kept beside the values: "not_finite":{"loss_laion":"NaN"}.
#pragma once

#include <cstdint>
#include <string>

#include "floe/observe/metrics/record.h"

namespace floe::observe {

// The line of a record, with its newline.
std::string json_line(const Record& record);

// Leaves the lines of steps up to last_step, each step once and in order; the file is replaced in
// one go, and only when something has to leave. Lines that are no records leave as well.
void trim_jsonl(const std::string& path, std::int64_t last_step);

}  // namespace floe::observe
