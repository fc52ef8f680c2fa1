/* Finding out whether what is stored still is what was written; what the functions promise:
 * ../boundary/scrub.h. */
#pragma once

#include "store/store.h"

#include "boundary/scrub.h"
