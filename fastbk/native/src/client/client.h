/* The client's codec: see boundary/client.h, which is the whole of it.  Pure functions over
 * bytes. */
#pragma once

#include "base/base.h"

#include "boundary/client.h"
