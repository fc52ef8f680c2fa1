/* See boundary/confine.h. */
#pragma once

#include "base/base.h"

#include "boundary/base.h"
#include "boundary/confine.h"
