// jpeglib.h uses FILE without including what declares it.
#pragma once

// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on
