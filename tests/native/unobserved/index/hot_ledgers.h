/* The same without observation: no ledger is counted (./dev bench observation). */
#pragma once

#include_next "index/hot_ledgers.h"

#define fbk_hot_note(sketch, ledger_id, entry_count, size_bytes) \
    ((void)(sketch), (void)(ledger_id), (void)(entry_count), (void)(size_bytes))
#define fbk_hot_roll(sketch, windows, now_ns) ((void)(sketch), (void)(windows), (void)(now_ns))
