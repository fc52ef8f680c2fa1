/* The same without observation: no samples are taken (./dev bench observation).  Records of slow
 * commits stay: no quick one has any. */
#pragma once

#include_next "base/flight.h"

#define fbk_flight_sample(recorder, now_ns) ((void)(recorder), (void)(now_ns))
