/* Shared memory: sealed memory files, made by the supervisor, mapped by the others.  The only C
 * file besides fbk_memory users that maps or allocates. */
#pragma once

#include "base/ring.h"

/* Makes the memory file of one role: header, control struct (size by role), then its rings; sealed
 * against shrinking and growing.  Its owner maps it and then calls fbk_segment_seal.  ring_sizes:
 * power of two multiples of 4096, up to 4 different ones (index: ring_sizes[0] repeated
 * `ring_repeat` times).  Returns the descriptor (close-on-exec) or -errno. */
int32_t fbk_segment_create(uint32_t role, uint32_t role_index, uint32_t pair, uint32_t epoch,
                           const uint64_t *ring_sizes, uint32_t ring_count, uint32_t ring_repeat);

/* Refuses all further writable mappings of the file, and writes to it, whoever asks, and further
 * seals: those that are mapped by now stay.  A descriptor that was handed out read-only could be
 * reopened for writing through /proc otherwise.  1; 0 where the kernel does not know how (before
 * Linux 5.1); -errno. */
int32_t fbk_segment_seal(int32_t fd);
/* 1, 0 or -errno. */
int32_t fbk_segment_is_sealed(int32_t fd);

/* Maps the control part; checks magic, version, role, sizes.  writable only for its owner.  NULL
 * with *error. */
void *fbk_segment_map(int32_t fd, uint32_t role, bool writable, int32_t *error);
void fbk_segment_unmap(void *segment, uint32_t role);

/* The statistics in a mapped segment of this role; NULL for an unknown role. */
struct fbk_stats *fbk_segment_stats(void *segment, uint32_t role);

/* Maps ring `index` of a segment twice, one behind the other. */
int32_t fbk_segment_map_ring(int32_t fd, const struct fbk_segment_header *header, uint32_t index,
                             uint32_t repeat_index, bool writable, struct fbk_ring *ring);
void fbk_segment_unmap_ring(struct fbk_ring *ring);

/* Anonymous memory, zero filled, touched only as used.  NULL when there is none.  size_bytes is
 * rounded up to pages.  Growing keeps the content. */
void *fbk_memory_take(uint64_t size_bytes);
void *fbk_memory_grow(void *memory, uint64_t old_size_bytes, uint64_t new_size_bytes);
void fbk_memory_give_back(void *memory, uint64_t size_bytes);
/* Whole pages of such memory stay mapped and are the system's until they are touched again, with
 * zeros. */
void fbk_memory_forget(void *pages, uint64_t size_bytes);
