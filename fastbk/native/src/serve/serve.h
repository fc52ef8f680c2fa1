/* The write service's codec: see boundary/serve.h, which is the whole of it.  Pure functions over
 * bytes. */
#pragma once

#include "base/base.h"

#include "boundary/serve.h"
