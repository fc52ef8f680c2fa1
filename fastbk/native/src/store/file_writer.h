/* Writes a file from front to back in aligned pieces, several in flight.  Owned by one thread, like
 * its io. */
#pragma once

#include "io/io.h"

#define FBK_PIECE_BYTES (1024u * 1024u)
#define FBK_PIECES_MAX 4u

struct fbk_file_writer {
    struct fbk_io *io;
    uint8_t *memory; /* piece_count x FBK_PIECE_BYTES, kept between files */
    uint32_t piece_count;
    uint32_t align_bytes;
    int32_t file;
    int32_t error; /* the first failure; sticky until the next begin */
    uint32_t current;
    uint32_t fill_bytes;
    uint32_t in_flight;
    /* of this writer, in tickets: a late completion of an earlier file is not taken for ours */
    uint32_t use;
    uint64_t offset_bytes; /* in the file, of the current piece */
    bool lost;             /* the io failed while pieces were under way */
    bool busy[FBK_PIECES_MAX];
    uint32_t sizes[FBK_PIECES_MAX];
};

int32_t fbk_file_writer_init(struct fbk_file_writer *writer, struct fbk_io *io);
void fbk_file_writer_free(struct fbk_file_writer *writer);
/* offset_bytes: a multiple of align_bytes. */
void fbk_file_writer_begin(struct fbk_file_writer *writer, int32_t file, uint64_t offset_bytes);
void fbk_file_writer_put(struct fbk_file_writer *writer, const void *data, uint64_t size_bytes);
void fbk_file_writer_zeros(struct fbk_file_writer *writer, uint64_t size_bytes);
/* Pads with zeros to the alignment. */
void fbk_file_writer_align(struct fbk_file_writer *writer);
/* At an aligned position: writes from `data` itself, aligned, too, which stays untouched until
 * finish or settle. */
void fbk_file_writer_put_in_place(struct fbk_file_writer *writer, const uint8_t *data,
                                  uint64_t size_bytes);
/* Pads to the alignment, waits until nothing is in flight; 0 or the first error.  Nothing is synced
 * yet. */
int32_t fbk_file_writer_finish(struct fbk_file_writer *writer);

/* Waits until nothing is in flight, so that another writer may use the same io meanwhile. */
void fbk_file_writer_settle(struct fbk_file_writer *writer);

static inline uint64_t
fbk_file_writer_position(const struct fbk_file_writer *writer)
{
    return writer->offset_bytes + writer->fill_bytes;
}
