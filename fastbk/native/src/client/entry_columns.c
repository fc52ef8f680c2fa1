/* Entries that were checked, into columns: see boundary/client.h.  The table came through Python,
 * so it is checked again. */
#include "client/client.h"

#include "boundary/status.h"

#include <string.h>

#define WORDS FBK_CLIENT_ENTRY_WORDS

void
fbk_client_entry_sums(const int64_t *found, uint32_t count, struct fbk_entry_sums *sums)
{
    int64_t lac_max = INT64_MIN;
    uint64_t data_bytes = 0; /* wraps where a table is nonsense */
    for (uint32_t i = 0; i < count; i++) {
        const int64_t *entry = found + (uint64_t)WORDS * i;
        lac_max = entry[1] > lac_max ? entry[1] : lac_max;
        data_bytes += (uint64_t)entry[4];
    }
    *sums = (struct fbk_entry_sums){lac_max, (int64_t)data_bytes};
}

int32_t
fbk_client_entry_columns(struct fbk_entry_columns *to, const uint8_t *entries,
                         uint64_t entries_bytes, const int64_t *found, uint32_t count)
{
    if (to->rows > to->rows_max || count > to->rows_max - to->rows)
        return FBK_E_FULL;
    if (to->rows == 0 && to->offsets != NULL)
        to->offsets[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        const int64_t *entry = found + (uint64_t)WORDS * i;
        const uint64_t row = to->rows + i;
        const int64_t at = entry[3], bytes = entry[4];
        if (at < 0 || bytes < 0 || (uint64_t)at > entries_bytes ||
            (uint64_t)bytes > entries_bytes - (uint64_t)at)
            return FBK_E_PROTOCOL;
        if (to->ids != NULL)
            to->ids[row] = entry[0];
        if (to->lengths != NULL)
            to->lengths[row] = entry[2];
        if (to->values == NULL)
            continue;
        if (to->filled > to->values_room || (uint64_t)bytes > to->values_room - to->filled ||
            to->values_room > INT32_MAX)
            return FBK_E_FULL;
        if (bytes != 0)
            memcpy(to->values + to->filled, entries + at, (size_t)bytes);
        to->filled += (uint64_t)bytes;
        if (to->offsets != NULL)
            to->offsets[row + 1] = (int32_t)to->filled;
    }
    to->rows += count;
    return 0;
}
