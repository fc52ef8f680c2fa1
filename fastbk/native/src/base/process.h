#pragma once

#include <stdint.h>

#include "boundary/process.h"
