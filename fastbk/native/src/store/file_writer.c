#include "store/file_writer.h"

#include "base/segment.h"

int32_t
fbk_file_writer_init(struct fbk_file_writer *writer, struct fbk_io *io)
{
    memset(writer, 0, sizeof *writer);
    writer->io = io;
    writer->file = -1;
    writer->piece_count = io->depth_max < FBK_PIECES_MAX ? io->depth_max : FBK_PIECES_MAX;
    if (writer->piece_count == 0)
        writer->piece_count = 1;
    writer->align_bytes =
        io->block_size_bytes > FBK_PAGE_BYTES ? io->block_size_bytes : FBK_PAGE_BYTES;
    if (FBK_PIECE_BYTES % writer->align_bytes != 0)
        return -EINVAL;
    writer->memory = fbk_memory_take((uint64_t)writer->piece_count * FBK_PIECE_BYTES);
    return writer->memory ? 0 : -ENOMEM;
}

void
fbk_file_writer_free(struct fbk_file_writer *writer)
{
    FBK_ASSERT(writer->in_flight == 0);
    if (writer->memory && !writer->lost)
        fbk_memory_give_back(writer->memory, (uint64_t)writer->piece_count * FBK_PIECE_BYTES);
    writer->memory = NULL;
}

void
fbk_file_writer_begin(struct fbk_file_writer *writer, int32_t file, uint64_t offset_bytes)
{
    FBK_ASSERT(writer->in_flight == 0 && offset_bytes % writer->align_bytes == 0);
    writer->file = file;
    writer->error = writer->lost ? -EIO : 0;
    writer->current = 0;
    writer->fill_bytes = 0;
    writer->offset_bytes = offset_bytes;
    writer->use++;
}

static void
take_completion(struct fbk_file_writer *writer, const struct fbk_io_completion *completion)
{
    uint32_t piece = (uint32_t)(completion->ticket & 0xff);
    if (completion->ticket >> 8 != writer->use || piece >= writer->piece_count ||
        !writer->busy[piece])
        return;
    writer->busy[piece] = false;
    writer->in_flight--;
    if (completion->result != (int32_t)writer->sizes[piece] && writer->error == 0)
        writer->error = completion->result < 0 ? completion->result : -EIO;
}

/* Waits for at least one completion.  An io that can't even be waited for leaves its buffers in the
 * kernel's hands: nothing is written any more, and the memory is never given back. */
static void
wait_for_some(struct fbk_file_writer *writer)
{
    struct fbk_io_completion completions[FBK_PIECES_MAX];
    int32_t rung = 0;
    int32_t count = writer->io->operations->wait(writer->io, -1, -1, completions,
                                                 (int32_t)FBK_PIECES_MAX, &rung);
    if (count < 0) {
        if (count == -EINTR)
            return;
        if (writer->error == 0)
            writer->error = count;
        memset(writer->busy, 0, sizeof writer->busy);
        writer->in_flight = 0;
        writer->lost = true;
        return;
    }
    for (int32_t i = 0; i < count; i++)
        take_completion(writer, &completions[i]);
}

static void
submit(struct fbk_file_writer *writer, const uint8_t *data, uint32_t size_bytes)
{
    uint32_t piece = writer->current;
    if (writer->error == 0) {
        writer->busy[piece] = true;
        writer->sizes[piece] = size_bytes;
        int32_t result = writer->io->operations->write(writer->io, writer->file, data, size_bytes,
                                                       writer->offset_bytes, 0,
                                                       (uint64_t)writer->use << 8 | piece);
        if (result < 0) {
            writer->busy[piece] = false;
            writer->error = result;
        } else {
            writer->in_flight++;
        }
    }
    writer->offset_bytes += size_bytes;
    writer->current = (piece + 1) % writer->piece_count;
    while (writer->busy[writer->current])
        wait_for_some(writer);
}

static void
submit_piece(struct fbk_file_writer *writer)
{
    uint32_t size_bytes = writer->fill_bytes;
    if (size_bytes == 0)
        return;
    writer->fill_bytes = 0;
    submit(writer, writer->memory + (size_t)writer->current * FBK_PIECE_BYTES, size_bytes);
}

void
fbk_file_writer_put(struct fbk_file_writer *writer, const void *data, uint64_t size_bytes)
{
    const uint8_t *from = data;
    while (size_bytes > 0) {
        uint64_t room = FBK_PIECE_BYTES - writer->fill_bytes;
        uint64_t now = size_bytes < room ? size_bytes : room;
        memcpy(writer->memory + (size_t)writer->current * FBK_PIECE_BYTES + writer->fill_bytes,
               from, now);
        writer->fill_bytes += (uint32_t)now;
        from += now;
        size_bytes -= now;
        if (writer->fill_bytes == FBK_PIECE_BYTES)
            submit_piece(writer);
    }
}

void
fbk_file_writer_zeros(struct fbk_file_writer *writer, uint64_t size_bytes)
{
    static const uint8_t zeros[4096];
    while (size_bytes > 0) {
        uint64_t now = size_bytes < sizeof zeros ? size_bytes : sizeof zeros;
        fbk_file_writer_put(writer, zeros, now);
        size_bytes -= now;
    }
}

void
fbk_file_writer_align(struct fbk_file_writer *writer)
{
    uint64_t position = fbk_file_writer_position(writer);
    fbk_file_writer_zeros(writer, fbk_round_up(position, writer->align_bytes) - position);
}

void
fbk_file_writer_put_in_place(struct fbk_file_writer *writer, const uint8_t *data,
                             uint64_t size_bytes)
{
    FBK_ASSERT(fbk_file_writer_position(writer) % writer->align_bytes == 0 &&
               size_bytes % writer->align_bytes == 0);
    submit_piece(writer);
    while (size_bytes > 0) {
        uint64_t now = size_bytes < FBK_PIECE_BYTES ? size_bytes : FBK_PIECE_BYTES;
        submit(writer, data, (uint32_t)now);
        data += now;
        size_bytes -= now;
    }
}

int32_t
fbk_file_writer_finish(struct fbk_file_writer *writer)
{
    fbk_file_writer_align(writer);
    submit_piece(writer);
    while (writer->in_flight > 0)
        wait_for_some(writer);
    return writer->error;
}

void
fbk_file_writer_settle(struct fbk_file_writer *writer)
{
    while (writer->in_flight > 0)
        wait_for_some(writer);
}
